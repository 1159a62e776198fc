"""Prefill overhead, decode time and bytes of every method on random-weight Llama shapes, in one run.

    python benchmarks/end_to_end.py        # all shapes and lengths, writes docs/results/end_to_end-VENDOR.*
    python benchmarks/end_to_end.py --shapes small --lengths 8192     # only these; other rows of the results stay

Weights and tokens are random: what is measured is time and memory, not quality. The prompt is prefilled once per shape
and length with everything kept; each method then compresses a copy of that prefill, so its overhead is timed by itself
instead of as a difference of two long runs. Methods that sum attention up while the model attends have prefills of
their own that take turns with such of `full`, and their overhead is the median difference; it is left empty where that
is not above the differences' spread. Decoding steps of all caches are interleaved, in another order at every step, and
medians reported.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache
from transformers.masking_utils import sdpa_mask

import winnow
from random_models import random_llama
from reporting import RESULTS, machine, markdown_table, of_this_processor, write_results
from winnow.cache.layer import CompressedLayer

VOCABULARY = 1024
PAIRS = 4
"""Prefills with a method that sums attention up, and as many without."""
METHODS = (
    "snapkv",
    "adakv",
    "kvec",
    "aperturekv",
    "criticalkv",
    "expectedattention",
    "pyramidkv",
    "ada-pyramidkv",
    "tova",
    "keydiff",
    "knorm",
    "streamingllm",
    "random",
    "h2o",
)


@dataclass(frozen=True)
class Shape:
    """A Llama with random weights."""

    name: str
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    intermediate: int

    def build(self) -> PreTrainedModel:
        """The model, fp32, with attention uneven enough for methods to choose."""
        model = random_llama(
            layers=self.layers,
            query_heads=self.query_heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            hidden=self.hidden,
            intermediate=self.intermediate,
            vocabulary=VOCABULARY,
        )
        for name, parameter in model.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                parameter.data.mul_(4)
        return model


SHAPES = {
    "small": Shape("4 layers, 8/2 heads, D 64", 4, 8, 2, 64, hidden=512, intermediate=1408),
    "large": Shape("2 layers, 32/8 heads, D 128", 2, 32, 8, 128, hidden=1024, intermediate=2816),
    "deep": Shape("28 layers, 4/2 heads, D 64", 28, 4, 2, 64, hidden=256, intermediate=704),
}


@dataclass
class Row:
    """One cache in one setting."""

    shape: str
    tokens: int
    cache: str
    prefill_seconds: float
    compress_seconds: float | None
    """None where it was not told from noise."""
    decode_ms: float
    held_mb: float
    payload_ratio: float | None
    """Held bytes of the prefix over slots × 2 × D × itemsize; None for caches without slots."""
    share: float
    """Share of the prompt that is kept."""

    @property
    def overhead(self) -> str:
        """Compression as a share of prefill, in words."""
        return "" if self.compress_seconds is None else f"{100 * self.compress_seconds / self.prefill_seconds:.1f} %"


class PreallocatedCache(DynamicCache):
    """The stock cache with room to grow, so that folded sdpa is not charged for copying the cache each step."""

    def __init__(self, filled: DynamicCache, room: int) -> None:
        super().__init__()
        self._layers = [(self._roomy(k, room), self._roomy(v, room)) for k, v, *_ in filled]
        self._length = filled.get_seq_length()
        self._seen = [self._length] * len(self._layers)

    @staticmethod
    def _roomy(dense: Tensor, room: int) -> Tensor:
        rows, heads, length, dim = dense.shape
        buffer = dense.new_empty(rows, heads, length + room, dim)
        buffer[:, :, :length] = dense
        return buffer

    def update(self, key: Tensor, value: Tensor, layer: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Writes the new tokens behind the old ones; returns views of everything."""
        keys, values = self._layers[layer]
        start, stop = self._seen[layer], self._seen[layer] + key.shape[2]
        keys[:, :, start:stop], values[:, :, start:stop] = key, value
        self._seen[layer] = stop
        return keys[:, :, :stop], values[:, :, :stop]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens so far."""
        return self._seen[layer_idx]

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Tokens after this step, and no offset."""
        return self._seen[layer_idx] + query_length, 0

    def nbytes(self) -> int:
        """Bytes allocated."""
        return sum(k.nbytes + v.nbytes for k, v in self._layers)


def folded_sdpa(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """sdpa with the query group folded into the length axis: every key is read once. Decoding only."""
    rows, heads, _, dim = query.shape
    folded = query.reshape(rows, key.shape[1], heads // key.shape[1], dim)
    out = nn.functional.scaled_dot_product_attention(folded, key, value, scale=kwargs["scaling"])
    return out.reshape(rows, 1, heads, dim), None


AttentionInterface.register("folded", folded_sdpa)
AttentionMaskInterface.register("folded", sdpa_mask)


@dataclass
class Contender:
    """A cache that decodes under an attention implementation."""

    name: str
    attention: str
    cache: Cache
    held: Callable[[], int]
    compress_seconds: float | None = 0.0
    """None where it was not told from noise."""
    payload: int | None = None


def read(model: PreTrainedModel, ids: Tensor, cache: winnow.CompressedCache) -> float:
    """Seconds of a prefill."""
    begin = time.perf_counter()
    with torch.no_grad():
        model(ids, cache=cache, logits_to_keep=1)
    return time.perf_counter() - begin


def prefill(model: PreTrainedModel, ids: Tensor) -> tuple[winnow.CompressedCache, float]:
    """A prefilled cache whose compression still waits, and the seconds of the prefill."""
    model.set_attn_implementation("winnow")
    cache = winnow.CompressedCache(model, winnow.method("full"))
    cache.activate_past_recording()
    return cache, read(model, ids, cache)


def compressed(waiting: winnow.CompressedCache, name: str, budget: int | None, repeats: int = 3) -> Contender:
    """The prefill compressed by one method; the median time of `repeats` compressions."""
    seconds = []
    for _ in range(repeats):
        cache = waiting.compressed_by(winnow.method(name, budget=budget))
        seconds.append(cache.stats().compress_seconds)
    return contender(name, cache, statistics.median(seconds))


def compressed_meanwhile(model: PreTrainedModel, ids: Tensor, name: str, budget: int) -> Contender:
    """Prefills of one method's own, in turns with such that keep everything."""
    differences: list[float] = []
    for turn in range(PAIRS):
        plain = winnow.CompressedCache(model, "full")
        cache = winnow.CompressedCache(model, winnow.method(name, budget=budget))
        seconds = {each: read(model, ids, each) for each in ((plain, cache), (cache, plain))[turn % 2]}
        differences.append(seconds[cache] - seconds[plain])
    return contender(name, cache, told_from_noise(differences))


def told_from_noise(differences: list[float]) -> float | None:
    """The median, or None where it is not above half of what the differences span."""
    middle = statistics.median(differences)
    return middle if middle > (max(differences) - min(differences)) / 2 else None


def contender(name: str, cache: winnow.CompressedCache, seconds: float | None) -> Contender:
    """A compressed cache that decodes."""
    layer = cache.compressed_layers()[0]
    payload = sum(map(sum, cache.stats().slots)) * 2 * dense(layer)[0].shape[-1] * layer.dtype.itemsize
    return Contender(name, "winnow", cache, lambda: cache.stats().held_bytes, seconds, payload)


def dense(layer: CompressedLayer) -> tuple[Tensor, Tensor]:
    """Keys and values [R, H, N, D] of a layer whose compression still waits."""
    if layer.tail is None:
        raise RuntimeError("the prompt has not been prefilled")
    return layer.tail.filled()


def stock(waiting: winnow.CompressedCache) -> DynamicCache:
    """transformers' own cache with the same keys and values."""
    cache = DynamicCache()
    for index, layer in enumerate(waiting.compressed_layers()):
        keys, values = dense(layer)
        cache.update(keys.clone(), values.clone(), index)
    return cache


def references(waiting: winnow.CompressedCache, steps: int) -> list[Contender]:
    """Caches that keep everything, ready to decode so many steps."""
    plain = stock(waiting)
    roomy = PreallocatedCache(plain, steps + 8)
    return [
        Contender("stock cache, sdpa", "sdpa", plain, lambda: sum(k.nbytes + v.nbytes for k, v, *_ in plain)),
        Contender("preallocated, folded sdpa", "folded", roomy, roomy.nbytes),
        compressed(waiting, "full", None, 1),
    ]


def decode(model: PreTrainedModel, made: list[Contender], steps: int) -> dict[str, float]:
    """Median milliseconds per token of each cache; the caches take turns at every step.

    Their order is drawn for every step: a cache is faster behind a small one than behind a large one.
    """
    token, drawn = torch.ones(1, 1, dtype=torch.int64), random.Random(0)
    times: dict[str, list[float]] = {each.name: [] for each in made}
    for step in range(steps + 2):
        for each in drawn.sample(made, len(made)):
            model.set_attn_implementation(each.attention)
            begin = time.perf_counter()
            with torch.no_grad():
                model(token, cache=each.cache)
            if step >= 2:
                times[each.name].append(time.perf_counter() - begin)
    return {name: 1000 * statistics.median(values) for name, values in times.items()}


def measure(shape: Shape, tokens: int, share: float, methods: list[str], steps: int) -> list[Row]:
    """All rows of one shape and length."""
    model = shape.build()
    ids = torch.randint(0, VOCABULARY, (1, tokens), generator=torch.Generator().manual_seed(1))
    prefill(model, ids[:, :512])
    waiting, seconds = prefill(model, ids)
    print(f"  prefill {seconds:.1f} s", flush=True)
    made, budget = references(waiting, steps), int(tokens * share)
    for name in methods:
        sums = winnow.method(name, budget=budget).scorer.sums_attention
        made.append(compressed_meanwhile(model, ids, name, budget) if sums else compressed(waiting, name, budget))
        print(f"    {name}: compressed, {seconds_told(made[-1].compress_seconds) or 'not told from noise'}", flush=True)
    held = {each.name: each.held() for each in made}
    del waiting
    gc.collect()
    speed = decode(model, made, steps)
    return [
        Row(
            shape=shape.name,
            tokens=tokens,
            cache=each.name,
            prefill_seconds=seconds,
            compress_seconds=each.compress_seconds,
            decode_ms=speed[each.name],
            held_mb=held[each.name] / 1e6,
            payload_ratio=_prefix_bytes(each) / each.payload if each.payload else None,
            share=share,
        )
        for each in made
    ]


def _prefix_bytes(each: Contender) -> int:
    kinds = each.cache.stats().bytes
    return kinds["keys"] + kinds["values"] + kinds["indices"]


def seconds_told(seconds: float | None) -> str:
    """Seconds in words; nothing where they are not known."""
    return "" if seconds is None else f"{seconds:.3f}"


def table(rows: list[Row]) -> str:
    """One table per shape and length, with ratios to the references of the same run."""
    parts = []
    for shape, tokens in dict.fromkeys((row.shape, row.tokens) for row in rows):
        group = [row for row in rows if (row.shape, row.tokens) == (shape, tokens)]
        by_name = {row.cache: row.decode_ms for row in group}
        snapkv = by_name.get("snapkv")
        body = [
            [
                row.cache,
                seconds_told(row.compress_seconds),
                row.overhead,
                f"{row.decode_ms:.2f}",
                f"{by_name['stock cache, sdpa'] / row.decode_ms:.1f}x",
                f"{by_name['preallocated, folded sdpa'] / row.decode_ms:.1f}x",
                f"{by_name['full'] / row.decode_ms:.1f}x",
                f"{row.decode_ms / snapkv:.2f}" if snapkv else "",
                f"{row.held_mb:.1f}",
                f"{row.payload_ratio:.3f}" if row.payload_ratio else "",
            ]
            for row in group
        ]
        head = [
            "cache",
            "compress s",
            "of prefill",
            "decode ms",
            "vs stock",
            "vs folded",
            "vs full, our kernel",
            "/ snapkv",
            "held MB",
            "bytes / payload",
        ]
        title = f"### {shape}, {tokens} tokens (prefill {group[0].prefill_seconds:.1f} s)"
        parts.append(f"{title}\n\n{markdown_table(head, body)}")
    return "\n\n".join(parts)


def earlier(path: Path, share: float) -> list[Row]:
    """Rows of earlier runs on this machine of the same share; a run replaces those of what it measures.

    Those without a share are of a version that did not write it down, and none of this one's.
    """
    found = json.loads(path.read_text()) if path.exists() else {}
    known = found["results"] if found.get("machine") == machine() else []
    return [Row(**record) for record in known if record.get("share") == share]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shapes", default="small,large", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--lengths", default="8192,32768")
    parser.add_argument("--share", type=float, default=0.02, help="budget as a share of the prompt")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    page = of_this_processor("end_to_end")
    rows = earlier(args.out / f"{page}.json", args.share)
    for tokens in map(int, args.lengths.split(",")):
        for shape in map(SHAPES.__getitem__, args.shapes.split(",")):
            rows = [row for row in rows if (row.shape, row.tokens) != (shape.name, tokens)]
            print(f"{shape.name}, {tokens} tokens", flush=True)
            rows += measure(shape, tokens, args.share, args.methods.split(","), args.steps)
            rows.sort(key=lambda row: row.tokens)
            text = (
                "# Methods end to end\n\n`python benchmarks/end_to_end.py`: Llamas with random weights in fp32, of "
                f"whose prompts {100 * args.share:g} % is kept. {machine()}\n\n{table(rows)}\n"
            )
            write_results(args.out, page, text, [asdict(row) for row in rows])
    print("\n" + table(rows))


if __name__ == "__main__":
    main()
