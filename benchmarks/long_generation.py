"""10,000 greedy tokens: bytes held and time per token, with the tail folded, without, and with transformers' own cache.

    python benchmarks/long_generation.py                    # writes docs/results/long_generation.*
    python benchmarks/long_generation.py --tokens 2000      # a quick look; writes nothing

Weights and prompt are random: what is measured is time and memory, not quality. The caches take turns, a hundred tokens
each, so that whatever disturbs the machine disturbs all of them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache

import winnow
from random_models import random_llama
from reporting import RESULTS, machine, markdown_table, write_results

TOKENS, TURN = 10_000, 100
MARKS = (1_000, 2_000, 5_000, 10_000)
THOUSAND = 1_000
STOCK = "transformers' DynamicCache"


class Contender(NamedTuple):
    """A way to hold the cache of a long generation."""

    name: str
    method: str | None = None
    fold_every: int | None = None


CONTENDERS = (
    Contender("snapkv", "snapkv", 32),
    Contender("snapkv", "snapkv", 128),
    Contender("adakv", "adakv", 128),
    Contender("h2o", "h2o", 128),
    Contender("rkv", "rkv", 128),
    Contender("triattention", "triattention", 128),
    Contender("expectedattention", "expectedattention(covariance=False)", 128),
    Contender("kvec", "kvec", 128),
    Contender("streamingllm", "streamingllm", 128),
    Contender("snapkv+bits(4)", "snapkv+bits(4)", 128),
    Contender("snapkv+spark(0.8)+bits(8)", "snapkv+spark(0.8)+bits(8)", 128),
    Contender("adakv, never folded", "adakv"),
    Contender(STOCK),
)


@dataclass
class Record:
    """Measurements of one contender, token by token."""

    name: str
    fold_every: int | None
    seconds: list[float] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    """Bytes after every token."""
    after_folds: list[int] = field(default_factory=list)
    """Bytes after the first token that follows a fold, which is in the tail."""
    fold_seconds: float = 0.0

    def thousand(self, index: int) -> float:
        """Median milliseconds per token in the thousand of that index."""
        return statistics.median(self.seconds[index * THOUSAND : (index + 1) * THOUSAND]) * 1e3


class Run:
    """One contender on its way."""

    def __init__(self, model: PreTrainedModel, contender: Contender, prompt: Tensor, budget: int) -> None:
        self.model, self.record = model, Record(contender.name, contender.fold_every)
        self.implementation = "sdpa" if contender.method is None else "winnow"
        model.set_attn_implementation(self.implementation)
        self.cache: Cache = DynamicCache(config=model.config)
        if contender.method is not None:
            method = winnow.method(contender.method, budget)
            self.cache = winnow.CompressedCache(model, method, fold_every=contender.fold_every)
        self.token = self._forward(prompt)
        self._prompt_seconds = self._compress_seconds()

    def advance(self, tokens: int) -> None:
        """Generates some more tokens."""
        self.model.set_attn_implementation(self.implementation)
        for _ in range(tokens):
            begin = time.perf_counter()
            self.token = self._forward(self.token)
            self.record.seconds.append(time.perf_counter() - begin)
            self._look()
        self.record.fold_seconds = self._compress_seconds() - self._prompt_seconds

    def _forward(self, tokens: Tensor) -> Tensor:
        output = self.model(tokens, cache=self.cache, use_cache=True, logits_to_keep=1)
        most_likely: Tensor = output.logits[:, -1].argmax(-1, keepdim=True)
        return most_likely

    def _look(self) -> None:
        if isinstance(self.cache, winnow.CompressedCache):
            stats = self.cache.stats()
            self.record.held.append(stats.held_bytes)
            if self.record.fold_every and stats.tail_tokens == [1] and len(self.record.held) > 1:
                self.record.after_folds.append(stats.held_bytes)
        else:
            self.record.held.append(sum(layer.keys.nbytes + layer.values.nbytes for layer in self.cache.layers))

    def _compress_seconds(self) -> float:
        return self.cache.stats().compress_seconds if isinstance(self.cache, winnow.CompressedCache) else 0.0


def build_model() -> PreTrainedModel:
    """A Llama of four layers, eight query and four KV heads of 64 channels, random weights."""
    return random_llama(
        layers=4,
        query_heads=8,
        kv_heads=4,
        head_dim=64,
        hidden=512,
        intermediate=1024,
        vocabulary=1024,
    )


def measure(tokens: int, prompt_length: int, budget: int) -> list[Record]:
    """All contenders side by side."""
    model = build_model()
    prompt = torch.randint(1, 1024, (1, prompt_length), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        runs = [Run(model, contender, prompt, budget) for contender in CONTENDERS]
        for done in range(0, tokens, TURN):
            for run in runs:
                run.advance(min(TURN, tokens - done))
            if (done + TURN) % THOUSAND == 0:
                print(f"{done + TURN} tokens", flush=True)
    return [run.record for run in runs]


def page(records: list[Record], prompt_length: int, budget: int) -> str:
    """The results for people."""
    tokens = len(records[0].held)
    marks = [mark for mark in MARKS if mark <= tokens]
    memory = markdown_table(
        ["cache", "folded every", *(f"MiB at {mark:,}" for mark in marks), "after folds: min", "median", "max"],
        [
            [each.name, _every(each), *(_mib(each.held[mark - 1]) for mark in marks), *_after_folds(each)]
            for each in records
        ],
    )
    last = tokens // THOUSAND - 1
    middle = last // 2
    speed = markdown_table(
        [
            "cache",
            "folded every",
            "ms/token, first 1,000",
            f"{middle}k to {middle + 1}k",
            f"{last}k to {last + 1}k",
            "last / first",
            "ms/fold",
            "folds, ms/token",
        ],
        [
            [
                each.name,
                _every(each),
                *(f"{each.thousand(index):.2f}" for index in (0, middle, last)),
                f"{each.thousand(last) / each.thousand(0):.2f}",
                *_folds(each),
            ]
            for each in records
        ],
    )
    return (
        f"# {tokens:,} generated tokens\n\n{machine()}\n\n"
        "A Llama with random weights: 4 layers, 8 query and 4 KV heads of 64 channels, fp32. "
        f"A prompt of {prompt_length} tokens, a budget of {budget} slots per KV head, greedy decoding; the caches take "
        f"turns, {TURN} tokens each. `python benchmarks/long_generation.py` repeats it.\n\n"
        '## Bytes held\n\nAll that the cache holds, allocated room included. "After folds" is measured after the first '
        f"token that follows each fold.\n\n{memory}\n\n"
        "## Time\n\nMilliseconds per token: medians of a thousand tokens, between folds; what folds take, spread over "
        "all tokens, comes on top.\n\n"
        f"{speed}\n"
    )


def facts(record: Record) -> dict[str, Any]:
    """The results for programs."""
    every = asdict(record)
    held, seconds = every.pop("held"), every.pop("seconds")
    thousands = range(len(seconds) // THOUSAND)
    return every | {
        "folds": len(record.after_folds),
        "after_folds": sorted(set(record.after_folds)),
        "held_bytes": {mark: held[mark - 1] for mark in MARKS if mark <= len(held)},
        "most_held_after_the_first_fold": max(held[(record.fold_every or 0) :]),
        "median_ms": [record.thousand(index) for index in thousands],
    }


def _every(record: Record) -> str:
    return str(record.fold_every or "")


def _mib(size: int) -> str:
    return f"{size / 2**20:.2f}"


def _after_folds(record: Record) -> list[str]:
    sizes = record.after_folds
    return [_mib(int(pick(sizes))) for pick in (min, statistics.median, max)] if sizes else ["", "", ""]


def _folds(record: Record) -> list[str]:
    if not record.after_folds:
        return ["", ""]
    seconds = record.fold_seconds
    return [f"{seconds / len(record.after_folds) * 1e3:.1f}", f"{seconds / len(record.seconds) * 1e3:.2f}"]


def main() -> None:
    """Measures, prints, and writes what a full run gave."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="tokens to generate, a multiple of 1,000")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt")
    parser.add_argument("--budget", type=int, default=256, help="slots per KV head")
    chosen = parser.parse_args()
    if chosen.tokens < THOUSAND or chosen.tokens % THOUSAND:
        parser.error("--tokens must be a multiple of 1,000")
    records = measure(chosen.tokens, chosen.prompt, chosen.budget)
    text = page(records, chosen.prompt, chosen.budget)
    print(text)
    if chosen.tokens == TOKENS:
        write_results(RESULTS, "long_generation", text, [facts(record) for record in records])


if __name__ == "__main__":
    main()
