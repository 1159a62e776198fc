"""Prompts of a model as glibc gives their temporaries back to the system, and as it keeps them.

    python benchmarks/kept_memory.py MODEL            # writes docs/results/kept_memory-VENDOR.*

Each turn is a process of its own: glibc reads what it is to keep when a process begins.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

import winnow
from reporting import RESULTS, machine, markdown_table, measured_apart, of_this_vendor, write_results
from winnow.commands.model_names import model_name
from winnow.models import WEIGHTS, load_model, open_model

KEPT = "4000000000"
KINDS = {
    "as it is": {},
    "kept": {"MALLOC_TRIM_THRESHOLD_": KEPT, "MALLOC_MMAP_THRESHOLD_": KEPT},
}
"""Variables of the environment, by what becomes of freed memory."""


class Prompt(NamedTuple):
    """One prompt, or the medians of several."""

    seconds: float
    faults: float
    """Pages that had to be found."""
    peak: float
    """Bytes that the process had in memory at most, the model's among them."""


@torch.no_grad()
def measured(model_file: str, weights: str, tokens: int, rounds: int) -> Prompt:
    """Medians of this process, after a prompt that is not counted."""
    options = {"weights": weights} if weights in WEIGHTS else {"dtype": weights}
    model = load_model(open_model(model_file), "cpu", **options)
    found = []
    for _ in range(rounds + 1):
        cache = winnow.CompressedCache(model, "adakv @ 5%")
        before, start = _used().ru_minflt, time.perf_counter()
        model(torch.randint(1000, (1, tokens)), past_key_values=cache, logits_to_keep=1)
        found.append(Prompt(time.perf_counter() - start, _used().ru_minflt - before, 1024 * _used().ru_maxrss))
    return Prompt(*map(median, zip(*found[1:], strict=True)))


def _used() -> resource.struct_rusage:
    return resource.getrusage(resource.RUSAGE_SELF)


def main() -> None:
    """Measures and writes the table, or measures one turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="directory, GGUF file or Hugging Face name")
    parser.add_argument("--weights", nargs="+", default=["bfloat16", "int4"])
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 8192], help="of a prompt")
    parser.add_argument("--rounds", type=int, default=3, help="prompts of a process")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--measure", action="store_true", help="the first weights and tokens in this process, as JSON")
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measured(options.model, options.weights[0], options.tokens[0], options.rounds)))
        return
    rows, records = [], []
    for weights in options.weights:
        for tokens in options.tokens:
            case = ["--weights", weights, "--tokens", str(tokens), "--rounds", str(options.rounds)]
            turns = {
                kind: Prompt(*measured_apart([options.model, *case, "--measure"], environment))
                for kind, environment in KINDS.items()
            }
            print(weights, tokens, turns, file=sys.stderr)
            rows.append([weights, f"{tokens:,}", *(cell for turn in turns.values() for cell in _cells(turn))])
            records += [{"weights": weights, "tokens": tokens, "kind": kind, **turns[kind]._asdict()} for kind in turns]
    told = [f"{what}, {kind}" for kind in KINDS for what in ("seconds", "pages found", "peak")]
    table = markdown_table(["weights", "tokens", *told], rows)
    print(table)
    settings = " ".join(f"`{name}={value}`" for name, value in KINDS["kept"].items())
    about = (
        "# Memory that glibc keeps\n\n`python benchmarks/kept_memory.py MODEL` on "
        f"{model_name(open_model(options.model))}. {machine()} Prompts with `adakv @ 5%`, medians of {options.rounds} "
        "after one that does not count. *As it is* and *kept* are processes of their own, kept with "
        f"{settings} in its environment. The peak is that of the process, from loading the model on.\n\n"
    )
    write_results(options.out, of_this_vendor("kept_memory"), about + table + "\n", records)


def _cells(turn: Prompt) -> list[str]:
    return [f"{turn.seconds:.2f} s", f"{turn.faults:,.0f}", f"{turn.peak / 1e6:,.0f} MB"]


if __name__ == "__main__":
    main()
