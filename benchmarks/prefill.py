"""Prefills under methods, in chunks and in types of weights: CPU seconds of one thread.

    python benchmarks/prefill.py                           # random-weight Llama shapes, 8,192 tokens
    python benchmarks/prefill.py --model DIR --text FILE   # a model, reading a text; with types of weights

Contenders take turns, each with a cache of its own that is thrown away, and a ratio is the median of those of the
rounds. Seconds are of the processor and not of a clock, which other work would stretch.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

import winnow
from end_to_end import SHAPES, VOCABULARY
from reporting import RESULTS, machine, markdown_table, of_this_processor, write_results
from rounds import Bench, measure
from winnow.evaluate.decoding import prefill
from winnow.models import load_model, open_model

METHODS = ("full", "snapkv @ 2%", "criticalkv @ 2%", "h2o @ 2%", "snapkv+cake @ 2%", "snapkv+global @ 2%")
CHUNKS = (512, 2048)
DTYPES = ("float32", "bfloat16")


class Subject(NamedTuple):
    """A model and what it reads."""

    name: str
    model: PreTrainedModel
    ids: Tensor
    """[1, N]"""


def stock(subject: Subject) -> None:
    """transformers' own cache and attention."""
    subject.model.set_attn_implementation("sdpa")
    with torch.no_grad():
        subject.model(subject.ids, cache=DynamicCache(), logits_to_keep=1)


def compressed(subject: Subject, method: str, chunk: int | None = None) -> None:
    """A prompt read and compressed."""
    subject.model.set_attn_implementation("winnow")
    cache = winnow.CompressedCache(subject.model, method, prompt_length=subject.ids.shape[1])
    prefill(subject.model, subject.ids, cache, chunk)


def against(bench: Bench, reference: str, subject: Subject, table: str) -> list[dict[str, Any]]:
    """A row for every contender: its median and the median of its ratios to the reference."""
    tokens = subject.ids.shape[1]
    return [
        {
            "table": table,
            "subject": subject.name,
            "tokens": tokens,
            "what": name,
            "seconds": bench.median(name),
            "tokens_per_second": tokens / bench.median(name),
            "ratio": bench.ratio(name, reference),
        }
        for name in bench.seconds
    ]


def of_methods(subject: Subject, rounds: int) -> list[dict[str, Any]]:
    """Prefills under methods against one that keeps everything."""
    work: dict[str, Callable[[], Any]] = {"stock cache, sdpa": partial(stock, subject)}
    work |= {name: partial(compressed, subject, name) for name in METHODS}
    return against(measure(work, rounds, time.process_time), "full", subject, "methods")


def of_chunks(subject: Subject, rounds: int) -> list[dict[str, Any]]:
    """A prompt in chunks against the same prompt whole."""
    work: dict[str, Callable[[], Any]] = {"whole": partial(compressed, subject, "snapkv @ 2%")}
    work |= {f"chunks of {size:,}": partial(compressed, subject, "snapkv @ 2%", size) for size in CHUNKS}
    return against(measure(work, rounds, time.process_time), "whole", subject, "chunks")


def of_dtypes(directory: str, ids: Tensor, rounds: int) -> list[dict[str, Any]]:
    """A model in every type of weights."""
    source = open_model(directory)
    subjects = {name: Subject(Path(directory).name, load_model(source, "cpu", name), ids) for name in DTYPES}
    work: dict[str, Callable[[], Any]] = {
        name: partial(compressed, each, "snapkv @ 2%") for name, each in subjects.items()
    }
    return against(measure(work, rounds, time.process_time), "float32", subjects["float32"], "types of weights")


def table_of(rows: list[dict[str, Any]]) -> str:
    """Markdown of the rows of one table and subject."""
    first = rows[0]
    body = [
        [row["what"], f"{row['seconds']:.2f}", f"{row['tokens_per_second']:,.0f}", f"{row['ratio']:.2f}"]
        for row in rows
    ]
    reference = {"methods": "full", "chunks": "whole"}.get(first["table"], DTYPES[0])
    head = [first["table"], "CPU seconds", "tokens per second", f"of {reference}"]
    title = f"{first['table'].capitalize()}: {first['subject']}, {first['tokens']:,} tokens"
    return f"### {title}\n\n{markdown_table(head, body)}\n"


def subjects_of(args: argparse.Namespace) -> list[Subject]:
    """Models and what they read."""
    if args.model is None:
        ids = torch.randint(0, VOCABULARY, (1, args.tokens), generator=torch.Generator().manual_seed(1))
        return [Subject(SHAPES[name].name, SHAPES[name].build(), ids) for name in args.shapes.split(",")]
    source = open_model(args.model)
    ids = source.tokenizer(args.text.read_text(encoding="utf-8"), return_tensors="pt").input_ids[:, : args.tokens]
    return [Subject(Path(args.model).name, load_model(source, "cpu", args.dtype), ids)]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="a directory; else random weights")
    parser.add_argument("--text", type=Path, help="what the model reads")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.model is not None and args.text is None:
        parser.error("give --text FILE, what the model reads")
    torch.set_num_threads(1)
    tables = []
    for subject in subjects_of(args):
        tables += [of_methods(subject, args.rounds), of_chunks(subject, args.rounds)]
        if args.model is not None:
            tables.append(of_dtypes(args.model, subject.ids, args.rounds))
        print("\n".join(table_of(rows) for rows in tables), flush=True)
    text = f"# Prefill\n\nCPU seconds, medians of {args.rounds} rounds. {machine()}\n\n" + "\n".join(
        map(table_of, tables)
    )
    name = "prefill" if args.model is None else "prefill_model"
    write_results(args.out, of_this_processor(name), text, [row for rows in tables for row in rows])
    print(machine())


if __name__ == "__main__":
    main()
