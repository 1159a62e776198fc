"""A prompt's temporaries: MLPs that compute it whole, and in pieces: seconds, pages found, and the rise of memory.

    python benchmarks/temporaries.py MODEL            # writes docs/results/temporaries-VENDOR.*

Needs Linux, which tells the peak of a process and forgets it.
"""

from __future__ import annotations

import argparse
import ctypes
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from transformers import PreTrainedModel

import winnow
from reporting import RESULTS, machine, markdown_table, of_this_processor, write_results
from winnow.commands.model_names import model_name
from winnow.models import WEIGHTS, load_model, mlps, open_model

PROCESS = Path("/proc/self")
WAYS = ("whole", "in pieces")


class Prompt(NamedTuple):
    """Costs of a prompt."""

    seconds: float
    pages: float
    """That the system had to find."""
    rise: float
    """Bytes that the process held at most, above what it held before."""


@contextmanager
def mlps_that_compute(way: str) -> Iterator[None]:
    """Has MLPs compute prompts of any length whole, or as they do."""
    with patch.object(mlps, "_FEWEST", sys.maxsize if way == "whole" else mlps._FEWEST):
        yield


@torch.no_grad()
def measured(model: PreTrainedModel, ids: Tensor) -> Prompt:
    """One prompt; memory that an earlier one left is given back first."""
    ctypes.CDLL(None).malloc_trim(0)
    (PROCESS / "clear_refs").write_text("5")  # forgets the peak
    cache = winnow.CompressedCache(model, "adakv @ 5%")
    held, found, start = _peak(), _pages(), time.perf_counter()
    model(ids, cache=cache, logits_to_keep=1)
    return Prompt(time.perf_counter() - start, _pages() - found, _peak() - held)


def _pages() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _peak() -> int:
    line = next(line for line in (PROCESS / "status").read_text().splitlines() if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def compare(model: PreTrainedModel, tokens: int, rounds: int) -> dict[str, Prompt]:
    """Medians by way; ways take turns, and the first round does not count."""
    found: dict[str, list[Prompt]] = {way: [] for way in WAYS}
    vocabulary = min(1000, model.get_input_embeddings().num_embeddings)
    for number in range(rounds + 1):
        for way in WAYS:
            with mlps_that_compute(way):
                prompt = measured(model, torch.randint(vocabulary, (1, tokens)))
            if number:
                found[way].append(prompt)
    return {way: Prompt(*map(median, zip(*found[way], strict=True))) for way in WAYS}


def main() -> None:
    """Measures and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="directory, GGUF file or Hugging Face name")
    parser.add_argument("--weights", nargs="+", default=["bfloat16", "float32", "int4"])
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 8192], help="of a prompt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args()
    rows, records = [], []
    for weights in options.weights:
        kind = {"weights": weights} if weights in WEIGHTS else {"dtype": weights}
        model = load_model(open_model(options.model), "cpu", **kind)
        for tokens in options.tokens:
            ways = compare(model, tokens, options.rounds)
            print(weights, tokens, ways, file=sys.stderr)
            rows.append([weights, f"{tokens:,}", *_cells(*ways.values())])
            records += [{"weights": weights, "tokens": tokens, "way": way, **ways[way]._asdict()} for way in ways]
    head = ["weights", "tokens", "whole", "in pieces", "pages", "pages, in pieces", "rise", "rise, in pieces"]
    table = markdown_table(head, rows)
    print(table)
    about = (
        "# A prompt's temporaries\n\n`python benchmarks/temporaries.py MODEL` on "
        f"{model_name(open_model(options.model))}. {machine()} Prompts with `adakv @ 5%`; medians of {options.rounds} "
        "rounds in which MLPs computed them whole and in pieces in turns. *Pages* are those that the system had to "
        "find, the *rise* is what the process held at most above what it held before.\n\n"
    )
    write_results(options.out, of_this_processor("temporaries"), about + table + "\n", records)


def _cells(whole: Prompt, pieces: Prompt) -> list[str]:
    times = [f"{whole.seconds:.2f} s", f"{pieces.seconds:.2f} s, {whole.seconds / pieces.seconds:.2f}x"]
    pages = [f"{prompt.pages:,.0f}" for prompt in (whole, pieces)]
    return [*times, *pages, *(f"{prompt.rise / 1e6:,.0f} MB" for prompt in (whole, pieces))]


if __name__ == "__main__":
    main()
