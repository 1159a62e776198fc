"""Loading a context from a file, and what that saves a question: seconds to its first token.

    python benchmarks/contexts.py                                              # loading alone: random weights
    python benchmarks/contexts.py --model DIR --text FILE --tokens 1400,8192   # questions on a document, too

The model is loaded already. A document is read anew with every question, by transformers' own cache or by a method, or
a file is opened that `winnow compress` wrote of it. All take turns; medians are reported.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

import winnow
from random_models import random_llama
from reporting import machine, markdown_table, write_results
from winnow.cache.fingerprint import ModelFingerprint
from winnow.evaluate.decoding import prefill
from winnow.models import load_model, open_model

ROOT = Path(__file__).resolve().parents[1]
LAYERS, TOKENS, ROUNDS = 8, 24_000, 9
BUDGETS = ("100%", "10%", "2%")
QUESTION = "\n\nQuestion: What is the text about, and who wrote it?\nAnswer:"


def small_llama() -> PreTrainedModel:
    """Random weights, little but its cache to load."""
    model = random_llama(
        layers=LAYERS,
        query_heads=8,
        kv_heads=4,
        head_dim=64,
        hidden=256,
        intermediate=512,
        vocabulary=512,
    )
    model.set_attn_implementation("winnow")
    return model


def seconds(work: Callable[[], object]) -> float:
    """Median over the rounds, after one that warms up."""
    work()
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return median(times)


def loading() -> tuple[str, list[dict[str, Any]]]:
    """Text and records of opening a file."""
    model = small_llama()
    ids = torch.randint(0, 512, (1, TOKENS), generator=torch.Generator().manual_seed(0))
    context = winnow.compress(model, ids, "snapkv @ 50%", chunk_size=2048)
    with tempfile.TemporaryDirectory() as folder:
        path = context.save(Path(folder) / "context.winnow")
        size = path.stat().st_size / 2**20
        parts = {
            "`load_context(verify=False)`": seconds(lambda: winnow.load_context(path, model, verify=False)),
            "`load_context()`": seconds(lambda: winnow.load_context(path, model)),
            "of it, recognizing the model": seconds(lambda: ModelFingerprint.of(model)),
        }
    rows = [[name, f"{1000 * taken:.1f}"] for name, taken in parts.items()]
    text = (
        f"A context of {size:,.0f} MiB, {LAYERS} layers, {TOKENS:,} tokens, in the page cache; one thread, medians of "
        f"{ROUNDS}.\n\n{markdown_table(['', 'ms'], rows)}\n"
    )
    return text, [{"what": name, "seconds": taken, "mebibytes": size} for name, taken in parts.items()]


def read_anew(model: PreTrainedModel, ids: Tensor, method: str | None) -> None:
    """Document and question together, by transformers' own cache or by a method."""
    model.set_attn_implementation("sdpa" if method is None else "winnow")
    cache = DynamicCache() if method is None else winnow.CompressedCache(model, method, prompt_length=ids.shape[1])
    prefill(model, ids, cache)


def opened(model: PreTrainedModel, path: Path, question: Tensor) -> None:
    """A question on a file."""
    model.set_attn_implementation("winnow")
    prefill(model, question, winnow.load_context(path, model).cache())


def first_tokens(model: PreTrainedModel, document: Tensor, question: Tensor, rounds: int) -> list[dict[str, Any]]:
    """A row for every way to the first token of an answer."""
    both = torch.cat([document, question], dim=1)
    with tempfile.TemporaryDirectory() as folder:
        work: dict[str, Callable[[], None]] = {"read anew, stock cache": partial(read_anew, model, both, None)}
        work["read anew, adakv @ 10%"] = partial(read_anew, model, both, "adakv @ 10%")
        sizes: dict[str, int] = {}
        for budget in BUDGETS:
            model.set_attn_implementation("winnow")
            path = Path(folder) / f"{budget}.winnow"
            sizes[f"opened, adakv @ {budget}"] = (
                winnow.compress(model, document, f"adakv @ {budget}").save(path).stat().st_size
            )
            work[f"opened, adakv @ {budget}"] = partial(opened, model, path, question)
        taken: dict[str, list[float]] = {name: [] for name in work}
        for _ in range(rounds):
            for name, each in work.items():
                begin = time.perf_counter()
                each()
                taken[name].append(time.perf_counter() - begin)
    stock = taken["read anew, stock cache"]
    return [
        {
            "tokens": document.shape[1],
            "question_tokens": question.shape[1],
            "what": name,
            "seconds": median(each),
            "times_faster": median(a / b for a, b in zip(stock, each, strict=True)),
            "bytes": sizes.get(name),
        }
        for name, each in taken.items()
    ]


def questions(args: argparse.Namespace) -> tuple[str, list[dict[str, Any]]]:
    """Text and records of questions on a document."""
    source = open_model(args.model)
    model = load_model(source, "cpu", args.dtype)
    ids = source.tokenizer(args.text.read_text(encoding="utf-8"), return_tensors="pt").input_ids
    question = source.tokenizer(QUESTION, return_tensors="pt", add_special_tokens=False).input_ids
    rows: list[dict[str, Any]] = []
    for tokens in map(int, args.tokens.split(",")):
        if ids.shape[1] < tokens:
            raise SystemExit(f"{args.text} has {ids.shape[1]} tokens; give a longer text, or fewer --tokens.")
        rows += first_tokens(model, ids[:, :tokens], question, args.rounds)
    body = [
        [
            f"{row['tokens']:,}",
            row["what"],
            f"{row['seconds']:.2f}",
            f"{row['times_faster']:.1f}x",
            "" if row["bytes"] is None else f"{row['bytes'] / 2**20:.1f}",
        ]
        for row in rows
    ]
    head = ["tokens of the document", "", "seconds to the first token", "of the stock cache", "MiB of the file"]
    text = (
        f"## A question on a document\n\n{Path(args.model).name}, {model.dtype}, {torch.get_num_threads()} threads; a "
        f"question of {question.shape[1]} tokens, the model loaded already, the file checked and in the page cache; "
        f"medians of {args.rounds} rounds.\n\n{markdown_table(head, body)}\n"
    )
    return text, rows


def main() -> None:
    """Measure, write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="a directory, for questions on a document")
    parser.add_argument("--text", type=Path, help="the document")
    parser.add_argument("--tokens", default="1400,8192")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    args = parser.parse_args()
    if args.model is not None and args.text is None:
        parser.error("give --text FILE, the document")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    text, records = loading()
    torch.set_num_threads(threads)
    command = "python benchmarks/contexts.py"
    if args.model is not None:
        asked, more = questions(args)
        text, records = f"{text}\n{asked}", records + more
        command += f" --model {Path(args.model).name} --text FILE --tokens {args.tokens}"
    text = f"# Loading contexts\n\n{machine()}\n\nRegenerate with `{command}`.\n\n{text}"
    write_results(args.out, "contexts", text, records)
    print(text)


if __name__ == "__main__":
    main()
