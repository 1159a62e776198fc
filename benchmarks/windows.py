"""Time of prompts and tokens of models with sliding windows, against transformers' own cache and attention.

    python benchmarks/windows.py    # writes docs/results/windows-VENDOR.*

Models have random weights in the shapes of real ones. Linear layers, norms and all else are Winnow's on both sides, so
what differs is attention and the cache. Tokens of all caches take turns, some each; medians count.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch import Tensor
from transformers import (
    DynamicCache,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    PreTrainedConfig,
    PreTrainedModel,
)

import winnow
from random_models import DTYPE, random_model
from reporting import RESULTS, machine, markdown_table, of_this_processor, write_results

VOCABULARY = 32768
TURN = 6
"""Tokens of each kind at a time."""
BUDGET = "adakv @ 5%"
WEIGHTS = "int4"


@dataclass(frozen=True)
class Shape:
    """A model, as much of it as fits a benchmark, and the attention that it has in transformers."""

    words: str
    config: Callable[[], PreTrainedConfig]
    attention: str
    """transformers' function: sdpa, or eager for what sdpa lacks."""
    prompts: tuple[int, ...]
    """Tokens; eager attention takes memory for every pair of them."""


SHAPES = {
    "gemma-3-1b": Shape(
        "26 layers, 22 of them with windows of 512",
        lambda: Gemma3TextConfig(
            vocab_size=VOCABULARY,
            hidden_size=1152,
            intermediate_size=6912,
            num_hidden_layers=26,
            num_attention_heads=4,
            num_key_value_heads=1,
            head_dim=256,
            sliding_window=512,
        ),
        "sdpa",
        (1024, 4096, 8192),
    ),
    "gemma-2-2b": Shape(
        "8 of 26 layers, 4 of them with windows of 4,096, soft-capping",
        lambda: Gemma2Config(
            vocab_size=VOCABULARY,
            hidden_size=2304,
            intermediate_size=9216,
            num_hidden_layers=8,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=256,
        ),
        "eager",
        (1024, 4096, 8192),
    ),
    "gpt-oss-20b": Shape(
        "4 of 24 layers, 2 of them with windows of 128, 8 of 32 experts, sinks",
        lambda: GptOssConfig(
            vocab_size=VOCABULARY,
            num_hidden_layers=4,
            num_local_experts=8,
            layer_types=["sliding_attention", "full_attention"] * 2,
        ),
        "eager",
        (512, 2048),
    ),
}


@dataclass(frozen=True)
class Row:
    """A model after a prompt: seconds of the prompt, and milliseconds of a token."""

    model: str
    words: str
    prompt: int
    reference: str
    prompts: dict[str, float]
    """By cache."""
    tokens: dict[str, float]
    """By cache, and by graphs."""


@torch.no_grad()
def measure(name: str, shape: Shape, weights: str, rounds: int) -> Iterator[Row]:
    """A row for every length of a prompt."""
    model = random_model(shape.config(), weights)
    for length in shape.prompts:
        ids = torch.randint(VOCABULARY, (1, length), generator=torch.Generator().manual_seed(0))
        reference = f"transformers' cache, {shape.attention}"
        model.set_attn_implementation("winnow")
        caches = {
            reference: DynamicCache(config=model.config),
            "full": winnow.CompressedCache(model, "full"),
            BUDGET: winnow.CompressedCache(model, BUDGET),
        }
        prompts = {}
        for label, cache in caches.items():
            model.set_attn_implementation(shape.attention if label == reference else "winnow")
            begin = time.perf_counter()
            model(ids, cache=cache, logits_to_keep=1)
            prompts[label] = time.perf_counter() - begin
        yield Row(name, shape.words, length, reference, prompts, tokens(model, shape, caches, reference, rounds))
        del caches
        gc.collect()


def tokens(
    model: PreTrainedModel, shape: Shape, caches: dict[str, DynamicCache], reference: str, rounds: int
) -> dict[str, float]:
    """Milliseconds of a token by kind of step; all kinds take turns."""
    token = torch.full((1, 1), 11)

    def ordinary(cache: DynamicCache) -> Tensor:
        logits: Tensor = model(token, cache=cache).logits
        return logits

    steps: dict[str, Callable[[], Tensor]] = {label: partial(ordinary, cache) for label, cache in caches.items()}
    model.set_attn_implementation("winnow")
    decoder = winnow.GraphedDecoder(model, caches[BUDGET], room=(rounds + 1) * TURN)
    del steps[BUDGET]
    steps[f"{BUDGET}, by a graph"] = partial(decoder.step, token)
    found: dict[str, list[float]] = {label: [] for label in steps}
    for turn in range(rounds + 1):
        for label, step in steps.items():
            model.set_attn_implementation(shape.attention if label == reference else "winnow")
            for _ in range(TURN):
                begin = time.perf_counter()
                step()
                if turn:  # the first warms up, and captures
                    found[label].append(1000 * (time.perf_counter() - begin))
    return {label: median(times) for label, times in found.items()}


def page(rows: list[Row], command: str, weights: str) -> str:
    """The tables, and how they came about."""
    shapes = "\n".join(
        f"- {row.model}: {row.words}; reference: {row.reference}." for row in {row.model: row for row in rows}.values()
    )
    head = ["model", "prompt", "transformers", "Winnow, `full`", "as fast", f"Winnow, `{BUDGET}`", "as fast"]
    prompts = [[row.model, f"{row.prompt:,}", *_beside(list(row.prompts.values()), "s", 2)] for row in rows]
    graph = [*head[:5], f"{head[5]}, by a graph", "as fast"]
    steps = [[row.model, f"{row.prompt:,}", *_beside(list(row.tokens.values()), "ms", 1)] for row in rows]
    return (
        f"# Sliding windows\n\n`{command}`. Random weights in {weights}, in the shapes of real models, with Winnow's "
        f"linear layers on both sides:\n\n{shapes}\n\n{machine()} Above 1x is faster than transformers' cache and "
        f"attention.\n\n## A prompt\n\nRead once.\n\n{markdown_table(head, prompts)}\n\n## A token behind it\n\n"
        f"Medians of tokens that took turns. The capture of the graph is left out ([what it takes](../graphs.md)).\n\n"
        f"{markdown_table(graph, steps)}\n"
    )


def _beside(times: list[float], unit: str, digits: int) -> list[str]:
    """The first time, then each of the others, and how many times as fast that is."""
    cells = [f"{times[0]:.{digits}f} {unit}"]
    for each in times[1:]:
        cells += [f"{each:.{digits}f} {unit}", f"{times[0] / each:.2f}x"]
    return cells


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--weights", choices=[DTYPE, "int8", "int4"], default=WEIGHTS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args()
    rows = []
    for name in options.models:
        for row in measure(name, SHAPES[name], options.weights, options.rounds):
            print(row, flush=True)
            rows.append(row)
    command = "python benchmarks/windows.py"
    if options.models != list(SHAPES):
        command += f" --models {' '.join(options.models)}"
    if options.weights != WEIGHTS:
        command += f" --weights {options.weights}"
    text = page(rows, command, options.weights)
    print(text)
    write_results(options.out, of_this_processor("windows"), text, [asdict(row) for row in rows])


if __name__ == "__main__":
    main()
