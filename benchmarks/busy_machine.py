"""Loading, reading and decoding beside other programs, by how long threads of OpenMP look for their next work awake.

    python benchmarks/busy_machine.py MODEL           # writes docs/results/busy_machine-VENDOR.*

A neighbor is a process that computes all the time. Both kinds of threads take turns, each turn in a process of its own,
as OpenMP reads how long they look when torch is imported.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from itertools import islice, pairwise, product
from pathlib import Path
from statistics import median

import torch

import winnow
from reporting import RESULTS, end_in_order, machine, markdown_table, measured_apart, of_this_processor, write_results
from winnow.cli import ROUNDS_AWAKE
from winnow.commands.model_names import model_name
from winnow.evaluate.decoding import decode, prefill
from winnow.models import load_model, open_model

LOOKS = "GOMP_SPINCOUNT"
KINDS = {"OpenMP's own, 300000": {}, f"the winnow command's, {ROUNDS_AWAKE}": {LOOKS: ROUNDS_AWAKE}}
"""Variables of each kind: rounds in which a thread looks before it sleeps."""
PROMPT, TOKENS, WARM_UP, METHOD = 512, 60, 4, "full"
PHASES = ("loading_s", "prompt_s", "token_s")


@contextmanager
def neighbor() -> Generator[None]:
    """Another program that computes until the end of the context."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def measured(model_file: str, weights: str) -> list[float]:
    """Seconds of each of PHASES, in this process."""
    begin = time.perf_counter()
    model = load_model(open_model(model_file), "cpu", weights=weights)
    loaded = time.perf_counter()
    cache = winnow.CompressedCache(model, METHOD, prompt_length=PROMPT)
    logits = prefill(model, torch.randint(1000, (1, PROMPT), generator=torch.Generator().manual_seed(0)), cache)
    read = time.perf_counter()
    answer = decode(model, cache, logits, TOKENS, frozenset())
    moments = [time.perf_counter() for _ in islice(answer, WARM_UP, None)]
    return [loaded - begin, read - loaded, median(later - earlier for earlier, later in pairwise(moments))]


def turn(kind: str, neighbors: int, arguments: list[str]) -> list[float]:
    """The same of another process beside neighbors. Raises CalledProcessError where that fails."""
    with ExitStack() as running:
        for _ in range(neighbors):
            running.enter_context(neighbor())
        found: list[float] = measured_apart([*arguments, "--measure"], KINDS[kind])
    return found


def main() -> None:
    """Measures and writes the table, or measures one turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="directory, GGUF file or Hugging Face name")
    parser.add_argument("--weights", default="int4")
    parser.add_argument("--neighbors", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--measure", action="store_true", help="one turn of this process, printed as JSON")
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measured(options.model, options.weights)))
        return
    if LOOKS in os.environ or "OMP_WAIT_POLICY" in os.environ:
        parser.error(f"{LOOKS} and OMP_WAIT_POLICY must not be set: this is about their values")
    cells = list(product(options.neighbors, KINDS))
    found: dict[tuple[int, str], list[list[float]]] = {cell: [] for cell in cells}
    for _ in range(options.turns):
        for neighbors, kind in cells:
            found[neighbors, kind].append(turn(kind, neighbors, sys.argv[1:]))
            print(neighbors, kind, found[neighbors, kind][-1], flush=True)
    rows, records = [], []
    for neighbors, kind in cells:
        seconds = [median(each) for each in zip(*found[neighbors, kind], strict=True)]
        loading, prompt, token = seconds
        rows.append([str(neighbors), kind, f"{loading:.1f} s", f"{prompt:.2f} s", f"{1e3 * token:.1f} ms"])
        records.append({"neighbors": neighbors, "rounds": kind, **dict(zip(PHASES, seconds, strict=True))})
    table = markdown_table(["neighbors", "rounds awake", "loading", f"a prompt of {PROMPT}", "a token"], rows)
    print(table)
    about = (
        f"# Beside other programs\n\n`python benchmarks/busy_machine.py MODEL` on "
        f"{model_name(open_model(options.model))} with {options.weights} weights. {machine()} A neighbor is a process "
        f"that computes all the time. *Rounds awake*: in which a thread of OpenMP looks for its next work before it "
        f"sleeps (`{LOOKS}`). Medians of {options.turns} turns, each a process; a token: the median of "
        f"{TOKENS - WARM_UP - 1}.\n\n"
    )
    write_results(options.out, of_this_processor("busy_machine"), about + table + "\n", records)


if __name__ == "__main__":
    end_in_order()
    main()
