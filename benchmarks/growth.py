"""Growth of decode time and bytes with context, output, batch and layers, one picture each.

    python benchmarks/growth.py        # writes docs/results/growth-VENDOR.* and docs/pictures/growth-*-VENDOR.png
    python benchmarks/growth.py --contexts 1024,4096 --tokens 1000 --batches 1,4 --layers 2,4 --out F --pictures F

Models are random and small, so that most of a step is cache and attention. Prompts go through the model without
attention over themselves: what is stored is as large, and a prompt of 128k tokens takes seconds. Caches take turns, a
few steps each. Medians count, of the processor time of one thread: the form of a line is asked for, which other threads
and other processes would blur. What was measured is kept in build/growth.journal.jsonl until the page is written: a run
that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AttentionInterface, Cache, DynamicCache, PreTrainedModel

import winnow
from no_attention import Handing
from random_models import random_llama
from reporting import machine, markdown_table, of_this_processor, resumable, write_results
from winnow.cache import attention
from winnow.estimate.journal import Journal
from winnow.report.style import INK, add_title, check_drawable, light_grid, line_style, new_figure, quiet_frame, save

ROOT = Path(__file__).resolve().parent.parent
JOURNAL = ROOT / "build" / "growth.journal.jsonl"
VOCABULARY, HIDDEN, HEADS, GROUP, DIM = 64, 128, 2, 2, 64
CONTEXT, BUDGET, FOLD_EVERY = 2048, 256, 128
TURN, WARM_UP = 8, 2
STRETCH = 250
"""Generated tokens of a point."""
STOCK, ALONE = "DynamicCache, sdpa", "the model alone"


class Way(NamedTuple):
    """A cache to decode with."""

    name: str
    attention: str
    make: Callable[[PreTrainedModel], Cache]


def compressed(name: str, method: str, fold_every: int | None = None) -> Way:
    """A compressed cache."""
    return Way(name, "winnow", lambda model: winnow.CompressedCache(model, method, fold_every=fold_every))


KEPT = compressed(f"snapkv, {BUDGET} slots", f"snapkv @ {BUDGET}")
WHOLE = compressed("all slots", "full")
DYNAMIC = Way(STOCK, "sdpa", lambda model: DynamicCache())
NOTHING = Way(ALONE, "nothing", lambda model: Handing())
PROMPTED = (KEPT, WHOLE, DYNAMIC, NOTHING)
GENERATING = (
    compressed(f"snapkv, folded every {FOLD_EVERY}", f"snapkv @ {BUDGET}", FOLD_EVERY),
    compressed("snapkv, never folded", f"snapkv @ {BUDGET}"),
    DYNAMIC,
    NOTHING,
)


class Growth(NamedTuple):
    """One picture and its table."""

    key: str
    title: str
    axis: str
    setting: str
    reasons: str
    """Reasons for the form of its lines."""


GROWTHS = (
    Growth(
        "context",
        "Context",
        "tokens of the prompt",
        f"2 layers, one row, a budget of {BUDGET} slots per KV head.",
        "A fixed budget is flat in both: a step reads the slots that are kept and the tail, whatever the prompt was. "
        "All slots are a straight line in both. DynamicCache copies all keys and values at every step: it is steeper, "
        "and steeper still once old and new copies outgrow the processor's caches.",
    ),
    Growth(
        "output",
        "Output",
        "generated tokens",
        f"4 layers, one row, a prompt of {CONTEXT // 4} tokens, {BUDGET} slots per KV head. Medians of {STRETCH} "
        f"tokens: folds, one in {FOLD_EVERY} steps, are not in them.",
        "A tail that is folded is flat. One that is not grows in bytes by steps, as its buffers grow by half when they "
        "are full, and in time with every token, by more of it once keys and values outgrow the processor's caches.",
    ),
    Growth(
        "batch",
        "Batch",
        "rows",
        f"2 layers, prompts of {CONTEXT:,} tokens.",
        "Bytes are straight lines. Time begins with what a step costs whatever the batch (Python, and the weights, "
        "which are read once for all rows), so it is not proportional; DynamicCache bends as it does with context.",
    ),
    Growth(
        "layers",
        "Layers",
        "layers",
        f"One row, a prompt of {CONTEXT:,} tokens.",
        "Straight lines, for layers do not know of each other. They bend up where the weights and slots of all layers "
        "together outgrow the processor's caches.",
    ),
)


def build(layers: int) -> PreTrainedModel:
    """A random model."""
    return random_llama(
        layers=layers,
        query_heads=HEADS * GROUP,
        kv_heads=HEADS,
        head_dim=DIM,
        hidden=HIDDEN,
        vocabulary=VOCABULARY,
    )


@contextmanager
def prompts_unattended() -> Iterator[None]:
    """Within, winnow's attention over prompts is left out; their queries, keys and values are compressed as ever."""
    nothing, dense = AttentionInterface()["nothing"], attention.dense_attention
    attention.dense_attention = lambda module, query, *others: nothing(module, query, *others[:3])[0]
    try:
        yield
    finally:
        attention.dense_attention = dense


class Run:
    """A cache with a prompt, and the milliseconds of its steps."""

    def __init__(self, model: PreTrainedModel, way: Way, prompt: Tensor) -> None:
        """prompt: [R, N] ids."""
        self._model, self._way = model, way
        self._token = prompt[:, -1:]
        model.set_attn_implementation("winnow")
        self.cache = way.make(model)
        model.set_attn_implementation("winnow" if way.attention == "winnow" else "nothing")
        with torch.no_grad(), prompts_unattended():
            model(prompt, cache=self.cache, logits_to_keep=1)
        self.times: list[float] = []

    def decode(self, steps: int) -> None:
        """So many tokens, of which the first few do not count."""
        self._model.set_attn_implementation(self._way.attention)
        for number in range(steps):
            begin = time.thread_time()
            with torch.no_grad():
                self._model(self._token, cache=self.cache)
            if number >= WARM_UP:
                self.times.append(1e3 * (time.thread_time() - begin))

    def held(self) -> float:
        """MiB of keys and values, and of everything else that a cache of ours holds."""
        if isinstance(self.cache, winnow.CompressedCache):
            return self.cache.stats().held_bytes / 2**20
        layers = () if isinstance(self.cache, Handing) else self.cache.layers
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in layers) / 2**20


Record = dict[str, Any]


def prompted(key: str, at: int, layers: int, rows: int, context: int, turns: int) -> list[Record]:
    """All caches after a prompt, at one place of a picture."""
    model = build(layers)
    prompt = torch.randint(0, VOCABULARY, (rows, context), generator=torch.Generator().manual_seed(1))
    runs = {way.name: Run(model, way, prompt) for way in PROMPTED}
    for _ in range(turns):
        for run in runs.values():
            run.decode(TURN)
    return [_record(key, at, name, run.times, run) for name, run in runs.items()]


def generated(tokens: int) -> Iterator[list[Record]]:
    """All caches along a long output, stretch by stretch."""
    model = build(layers=4)
    prompt = torch.randint(0, VOCABULARY, (1, CONTEXT // 4), generator=torch.Generator().manual_seed(1))
    runs = {way.name: Run(model, way, prompt) for way in GENERATING}
    for end in range(STRETCH, tokens + 1, STRETCH):
        for run in runs.values():
            run.times.clear()
            run.decode(STRETCH)
        yield [_record("output", end, name, run.times, run) for name, run in runs.items()]


def _record(key: str, at: int, cache: str, times: Sequence[float], run: Run) -> Record:
    return {"growth": key, "at": at, "cache": cache, "ms": statistics.median(times), "mib": run.held()}


def whole(records: Sequence[Record]) -> dict[tuple[str, int], list[Record]]:
    """Records by picture and place, of places where all caches were measured, each the last time.

    A run that was stopped in between leaves records of some of the caches.
    """
    found: dict[tuple[str, int], dict[str, Record]] = {}
    for record in records:
        found.setdefault((record["growth"], record["at"]), {})[record["cache"]] = record
    caches = {growth.key: {way.name for way in PROMPTED} for growth in GROWTHS}
    caches["output"] = {way.name for way in GENERATING}
    return {(key, at): list(each.values()) for (key, at), each in found.items() if each.keys() == caches[key]}


def measure(journal: Journal, args: argparse.Namespace) -> list[Record]:
    """Every place of every picture, those in the journal as they are."""
    known = whole(journal.records())
    records = [record for place in known.values() for record in place]

    def keep(found: Sequence[Record]) -> None:
        for record in found:
            journal.append(record)
        records.extend(found)
        times = ", ".join(f"{record['cache']} {record['ms']:.2f} ms" for record in found)
        print(f"{found[0]['growth']} {found[0]['at']:,}: {times}", flush=True)

    for context in args.contexts:
        if ("context", context) not in known:
            keep(prompted("context", context, layers=2, rows=1, context=context, turns=args.turns))
    for rows in args.batches:
        if ("batch", rows) not in known:
            keep(prompted("batch", rows, layers=2, rows=rows, context=CONTEXT, turns=args.turns))
    for layers in args.layers:
        if ("layers", layers) not in known:
            keep(prompted("layers", layers, layers=layers, rows=1, context=CONTEXT, turns=args.turns))
    if ("output", args.tokens) not in known:
        for found in generated(args.tokens):
            if ("output", found[0]["at"]) not in known:
                keep(found)
    return records


def lines(records: Sequence[Record], key: str) -> dict[str, list[Record]]:
    """Records of a picture, by cache, along its axis."""
    chosen = sorted((record for record in records if record["growth"] == key), key=lambda record: record["at"])
    names = dict.fromkeys(record["cache"] for record in chosen)
    return {name: [record for record in chosen if record["cache"] == name] for name in names}


def draw(path: Path, growth: Growth, found: Mapping[str, Sequence[Record]]) -> Path:
    """Milliseconds and MiB along the axis."""
    figure = new_figure(11, 4.4)
    for place, (measured, label) in enumerate((("ms", "milliseconds of one thread per step"), ("mib", "MiB held"))):
        axes = figure.add_axes((0.07 + 0.4 * place, 0.14, 0.3, 0.62))
        quiet_frame(axes)
        light_grid(axes)
        for number, (name, records) in enumerate(found.items()):
            points = [(record["at"], record[measured]) for record in records]
            axes.plot(*zip(*points, strict=True), label=name, **{**line_style(number), "markersize": 4})
        axes.set_ylim(bottom=0)
        axes.locator_params(axis="x", nbins=5, integer=True)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set_xlabel(growth.axis, fontsize=9, color=INK)
        axes.set_ylabel(label, fontsize=9, color=INK)
        if place == 0:
            figure.legend(loc="center left", bbox_to_anchor=(0.8, 0.45), frameon=False, fontsize=8)
    add_title(figure, growth.title, growth.setting, left=0.04)
    return save(figure, path)


def table(growth: Growth, found: Mapping[str, Sequence[Record]]) -> str:
    """The first, the middle and the last place of every line, and the last over DynamicCache's."""
    by_place = {name: {record["at"]: record for record in records} for name, records in found.items()}
    places = list(by_place[STOCK])
    picked = sorted({places[0], places[len(places) // 2], places[-1]})
    head = ["cache", *(f"ms at {at:,}" for at in picked), f"of {STOCK}", *(f"MiB at {at:,}" for at in picked)]
    body = [
        [
            name,
            *(f"{records[at]['ms']:.2f}" for at in picked),
            f"{records[picked[-1]]['ms'] / by_place[STOCK][picked[-1]]['ms']:.2f}",
            *(f"{records[at]['mib']:.2f}" for at in picked),
        ]
        for name, records in by_place.items()
    ]
    return markdown_table(head, body)


def page(records: Sequence[Record], pictures: Path) -> str:
    """The results for people; draws the pictures."""
    parts = [
        f"# Growth\n\n`python benchmarks/growth.py`. {machine()} Models with random weights, {HEADS} KV heads and "
        f"{HEADS * GROUP} query heads of {DIM} channels, fp32. `{ALONE}` keeps nothing and does not attend. Times are "
        f'processor times of one thread; the column "of {STOCK}" compares them at the last place.'
    ]
    for growth in GROWTHS:
        found = lines(records, growth.key)
        file = of_this_processor(f"growth-{growth.key}") + ".png"
        draw(pictures / file, growth, found)
        picture = f"![{growth.title}: milliseconds per step and MiB held](../pictures/{file})"
        parts += [f"## {growth.title}", growth.setting, picture, table(growth, found), growth.reasons]
    return "\n\n".join(parts) + "\n"


def _stretches(text: str) -> int:
    """Tokens of an output, in whole stretches: else its last point would be missing."""
    tokens = int(text)
    if tokens < STRETCH or tokens % STRETCH:
        raise argparse.ArgumentTypeError(f"{text} is no multiple of {STRETCH}")
    return tokens


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def main() -> None:
    """Measure, draw, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--contexts", type=_numbers, default=_numbers("2048,4096,8192,16384,32768,65536,131072"))
    parser.add_argument("--tokens", type=_stretches, default=6000, help=f"of output, a multiple of {STRETCH}")
    parser.add_argument("--batches", type=_numbers, default=_numbers("1,2,4,8,16,32"))
    parser.add_argument("--layers", type=_numbers, default=_numbers("2,4,8,16,32"))
    parser.add_argument("--turns", type=int, default=6, help=f"of {TURN} steps each")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    parser.add_argument("--pictures", type=Path, default=ROOT / "docs" / "pictures")
    parser.add_argument("--journal", type=Path, default=JOURNAL)
    args = parser.parse_args()
    check_drawable()
    torch.set_num_threads(1)
    sizes = {name: getattr(args, name) for name in ("contexts", "tokens", "batches", "layers", "turns")}
    args.journal.parent.mkdir(parents=True, exist_ok=True)
    journal = Journal.open(args.journal, {"machine": machine(), **sizes})
    records = measure(journal, args)
    write_results(args.out, of_this_processor("growth"), page(records, args.pictures), records)
    journal.close()
    args.journal.unlink()


if __name__ == "__main__":
    resumable(main)
