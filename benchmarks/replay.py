"""Seconds of reading a prompt, and of having it repeated (KVzip), on a model.

    python benchmarks/replay.py [MODEL] [--tokens 1024,4096] [--repeats 3]

Prefill and replays take turns, and medians are reported: CPU seconds of this process, which other work does not stretch
as it does those of a clock. A replay reads as many tokens as the prompt has, and a few words with each chunk, over a
cache that holds the prompt already, and scores every chunk besides.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

import winnow
from reporting import RESULTS, machine, markdown_table, write_results
from winnow.bundled import MODEL_PATH
from winnow.cache.replay import replay
from winnow.evaluate.decoding import prefill
from winnow.models import ModelSource, load_model, open_model
from winnow.score import KVzip

SCORERS = {"kvzip": KVzip(), "kvzip(chunk=512)": KVzip(chunk=512), "kvzip-plus": KVzip(normalize=True)}


def read(model: PreTrainedModel, ids: Tensor) -> winnow.CompressedCache:
    """The prompt, dense, as it waits for its compression."""
    cache = winnow.CompressedCache(model, "full", prompt_length=ids.shape[1], defer=True, waiting_queries=1)
    prefill(model, ids, cache)
    return cache


def timed(work: Callable[[], Any]) -> float:
    """CPU seconds of this process."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def measure(source: ModelSource, model: PreTrainedModel, tokens: int, repeats: int) -> list[dict[str, Any]]:
    """A row for the prefill and for every scorer."""
    vocabulary = min(1000, model.get_input_embeddings().num_embeddings)
    ids = torch.randint(10, vocabulary, (1, tokens), generator=torch.Generator().manual_seed(0))
    waiting = read(model, ids)
    work: dict[str, Callable[[], Any]] = {"prefill": partial(read, model, ids)}
    for name, scorer in SCORERS.items():
        work[name] = partial(replay, waiting, ids, scorer, source.tokenizer)
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(repeats):
        for name, each in work.items():
            seconds[name].append(timed(each))
    first = median(seconds["prefill"])
    return [
        {
            "tokens": tokens,
            "what": name,
            "seconds": median(found),
            "of_prefill": median(found) / first,
            "together": 1.0 if name == "prefill" else 1 + median(found) / first,
        }
        for name, found in seconds.items()
    ]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default=str(MODEL_PATH))
    parser.add_argument("--tokens", default="256,900")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    source = open_model(args.model)
    model = load_model(source, "cpu", args.dtype)
    rows = [row for tokens in args.tokens.split(",") for row in measure(source, model, int(tokens), args.repeats)]
    head = ["tokens", "what", "CPU seconds", "of the prefill", "with the prefill"]
    body = [
        [
            f"{row['tokens']:,}",
            row["what"],
            f"{row['seconds']:.2f}",
            f"{row['of_prefill']:.2f}",
            f"{row['together']:.2f}x",
        ]
        for row in rows
    ]
    facts = f"{model.config.model_type}, {model.num_parameters() / 1e6:,.0f} M parameters, {model.dtype}."
    title = f"# Repeating a prompt\n\n`python benchmarks/replay.py MODEL --tokens {args.tokens}`: "
    text = f"{title}{facts} {machine()}\n\n{markdown_table(head, body)}\n"
    write_results(args.out, "replay", text, rows)
    print(text)


if __name__ == "__main__":
    main()
