"""Decode steps of a model on the threads of torch's OpenMP and on the library's own, by tokens of context.

    python benchmarks/lent_threads.py MODEL           # writes docs/results/lent_threads.*

Both kinds take turns, each turn in a process of its own: the library keeps to the kind that it begins with. Between two
calls of the kernel torch multiplies by a layer's weights, which is what the threads come from.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median

import torch

import winnow
from decode_overhead import Timed
from reporting import RESULTS, machine, markdown_table, measured_apart, write_results
from winnow.commands.model_names import model_name
from winnow.evaluate.decoding import prefill
from winnow.kernels import native
from winnow.models import load_model, open_model

KINDS = {"torch's": "", "the library's own": "pool"}
"""Values of WINNOW_THREADS."""
WARM_UP = 4
Medians = dict[str, tuple[float, float]]
"""Seconds of the kernel in a layer and of a step, by tokens of context."""


@torch.no_grad()
def measured(model_file: str, weights: str, depths: list[int], steps: int) -> Medians:
    """Medians of this process, on the threads that it is told to use."""
    library = native.loaded_library()
    kernel = Timed(library.winnow_step)
    vars(library)["winnow_step"] = kernel  # steps that are made from here on call it
    model = load_model(open_model(model_file), "cpu", weights=weights)
    vocabulary = min(1000, model.get_input_embeddings().num_embeddings)
    found: Medians = {}
    for depth in depths:
        cache = winnow.CompressedCache(model, "full", prompt_length=depth)
        prefill(model, torch.randint(vocabulary, (1, depth)), cache, chunk_size=2048)
        taken: list[float] = []
        for number in range(WARM_UP + steps):
            if number == WARM_UP:
                kernel.seconds.clear()
                taken.clear()
            begin = time.perf_counter()
            model(torch.randint(vocabulary, (1, 1)), cache=cache)
            taken.append(time.perf_counter() - begin)
        found[str(depth)] = (median(kernel.seconds), median(taken))
    return found


def turn(kind: str, arguments: list[str]) -> Medians:
    """The same of another process. Raises CalledProcessError where that fails."""
    found: Medians = measured_apart([*arguments, "--measure"], {"WINNOW_THREADS": KINDS[kind]})
    return found


def main() -> None:
    """Measures and writes the table, or measures one turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="directory, GGUF file or Hugging Face name")
    parser.add_argument("--weights", default="int4")
    parser.add_argument("--depths", default="512,2048,8192", help="tokens of context")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--measure", action="store_true", help="one turn of this process, printed as JSON")
    options = parser.parse_args()
    depths = [int(each) for each in options.depths.split(",")]
    if options.measure:
        print(json.dumps(measured(options.model, options.weights, depths, options.steps)))
        return
    turns = [{kind: turn(kind, sys.argv[1:]) for kind in KINDS} for _ in range(options.turns)]
    rows, records = [], []
    for depth in depths:
        for kind in KINDS:
            kernel, step = (median(each[kind][str(depth)][what] for each in turns) for what in (0, 1))
            rows.append([f"{depth:,}", kind, f"{1e6 * kernel:.0f} µs", f"{1e3 * step:.1f} ms"])
            records.append({"depth": depth, "threads": kind, "kernel_s": kernel, "step_s": step})
    table = markdown_table(["tokens of context", "threads", "kernel, a layer", "a token"], rows)
    print(table)
    about = (
        f"# Lent threads\n\n`python benchmarks/lent_threads.py MODEL` on {model_name(open_model(options.model))} with "
        f"{options.weights} weights. {machine()} The full cache, dense; medians of {options.turns} turns, each a "
        f"process, of medians of {options.steps} steps.\n\n"
    )
    write_results(options.out, "lent_threads", about + table + "\n", records)


if __name__ == "__main__":
    main()
