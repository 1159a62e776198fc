"""Time of passes with candidates that are wrong, against a single token, in models of several kinds.

    python benchmarks/candidate_passes.py    # writes docs/results/candidate_passes-VENDOR.*

Models have random weights in the shapes of real ones. A pass has a token and candidates behind it; all of these are
wrong, and are taken back. Single tokens and passes of all sizes take turns, all by graphs; medians count.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch
from transformers import PreTrainedConfig, PreTrainedModel, Qwen2Config

import winnow
from hybrid_shapes import configurations
from random_models import DTYPE, random_model
from reporting import RESULTS, machine, markdown_table, of_this_processor, write_results
from windows import SHAPES
from winnow.cache.trial import Trial

SIZES = (2, 4, 8, 16)
"""Tokens of a pass."""
PROMPT, BUDGET, WEIGHTS = 1024, "adakv @ 5%", "int4"


def _qwen() -> PreTrainedConfig:
    return Qwen2Config(
        vocab_size=32768,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )


MODELS: dict[str, tuple[str, Callable[[], PreTrainedConfig]]] = {
    "Qwen2.5-0.5B": ("full attention", _qwen),
    "gemma-3-1b": ("22 of 26 layers with windows of 512", SHAPES["gemma-3-1b"].config),
    "Qwen3.5-0.8B": ("18 of 24 layers with gated delta rule", lambda: configurations()["Qwen3.5-0.8B"]),
    "LFM2-350M": ("10 of 16 layers with short convolutions", lambda: configurations()["LFM2-350M"]),
    "Falcon-H1-0.5B": ("Mamba-2 beside attention in 36 layers", lambda: configurations()["Falcon-H1-0.5B"]),
}


@dataclass(frozen=True)
class Row:
    """Milliseconds of a model."""

    model: str
    words: str
    token: float
    passes: dict[int, float]
    """By the number of tokens."""


@torch.inference_mode()
def measure(name: str, weights: str, rounds: int) -> Row:
    """A model after a prompt."""
    words, config = MODELS[name]
    model = random_model(config(), weights)
    ids = torch.randint(1000, (1, PROMPT), generator=torch.Generator().manual_seed(0))
    cache = winnow.CompressedCache(model, BUDGET)
    model(ids, cache=cache, logits_to_keep=1)
    found: dict[int, list[float]] = {size: [] for size in (1, *SIZES)}
    with winnow.step_graphs(model):
        trial = Trial(cache)
        for turn in range(rounds + 4):
            for size, times in found.items():
                begin = time.perf_counter()
                _read(model, cache, trial, size)
                if turn >= 4:  # until then graphs are captured, and held against ordinary passes
                    times.append(1000 * (time.perf_counter() - begin))
    token, *passes = (median(each) for each in found.values())
    return Row(name, words, token, dict(zip(SIZES, passes, strict=True)))


def _read(model: PreTrainedModel, cache: winnow.CompressedCache, trial: Trial, size: int) -> None:
    """A pass of so many tokens, of which the first stays."""
    tokens = torch.full((1, size), 11)
    if size == 1:
        model(tokens, cache=cache)
        return
    with trial.passing():
        model(tokens, cache=cache)
    if again := trial.end(size, size - 1):
        model(tokens[:, :again], cache=cache)


def page(rows: list[Row], weights: str) -> str:
    """The table, and how it came about."""
    head = ["model", "layers", "a token", *(f"a pass of {size}" for size in SIZES)]
    cells = [
        [row.model, row.words, f"{row.token:.1f} ms"]
        + [f"{each:.1f} ms, {each / row.token:.2f}" for each in row.passes.values()]
        for row in rows
    ]
    return (
        "# Passes with candidates\n\n`python benchmarks/candidate_passes.py`: a token and "
        "[candidates](../command-line.md#candidates) behind it, all of which are wrong and are taken back, and how "
        f"many times a single token's time that is. Random weights in {weights}, in the shapes of real models, after a "
        f"prompt of {PROMPT:,} tokens, over a cache of `{BUDGET}`, all by [graphs](../graphs.md). Passes took turns; "
        f"medians. {machine()}\n\n{markdown_table(head, cells)}\n"
    )


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--weights", choices=[DTYPE, "int8", "int4"], default=WEIGHTS)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args()
    rows = []
    for name in options.models:
        rows.append(measure(name, options.weights, options.rounds))
        print(rows[-1], flush=True)
        gc.collect()
    text = page(rows, options.weights)
    print(text)
    write_results(options.out, of_this_processor("candidate_passes"), text, [asdict(row) for row in rows])


if __name__ == "__main__":
    main()
