"""Time of a decode step that is neither the model's nor the kernel's: what a cache and its attention function take.

    python benchmarks/decode_overhead.py              # writes docs/results/decode_overhead-VENDOR.*

A model of many small layers decodes over a short context with a compressed cache, with transformers' DynamicCache under
sdpa, and with neither: a cache that hands keys and values on, and attention that returns a tensor it made before. They
take turns, a few steps each; every call of a cache's `update`, of the attention function and of the compiled library
inside it is timed, and medians over calls count: folds, one call in many, are not in them. The library's call attends
and, before that, copies the new token behind those that are held: both are the kernel's time.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, Cache, DynamicCache, PreTrainedModel

import winnow
from no_attention import Handing
from random_models import random_llama
from reporting import RESULTS, machine, markdown_table, of_this_processor, write_results
from winnow.kernels import native

VOCABULARY, HIDDEN, DIM, GROUP = 64, 64, 64, 2
PROMPT, FOLD_EVERY = 64, 32
KEPT = PROMPT
"""Slots of a head: as many as DynamicCache holds, so that both attend to as much."""
TURN, WARM_UP = 8, 2
"""Steps of a turn, and how many at its beginning do not count."""


@dataclass(frozen=True)
class Setting:
    """A model's KV heads, a batch, and the life of its tail."""

    heads: int
    rows: int
    folds: bool


@dataclass(frozen=True)
class Row:
    """Microseconds per layer of one setting, medians over calls."""

    heads: int
    rows: int
    folds: bool
    ours: float
    """Time of `update` and the attention function, without the kernel."""
    kernel: float
    dynamic: float
    """Time of DynamicCache's `update` and transformers' sdpa."""
    nothing: float
    """Time of calls that do nothing."""
    model: float
    """All that a layer takes with those, in the thread's own time."""

    @property
    def ratio(self) -> float:
        """All that the compressed cache takes, kernel included, over what DynamicCache and sdpa take."""
        return (self.ours + self.kernel) / self.dynamic


class Timed:
    """A function, with the seconds of each of its calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.seconds: list[float] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the function."""
        begin = time.perf_counter()
        result = self._function(*args, **kwargs)
        self.seconds.append(time.perf_counter() - begin)
        return result


class Contender:
    """A cache with a prompt that decodes under an attention implementation, its parts timed."""

    def __init__(self, model: PreTrainedModel, attention: str, function: Callable[..., Any], cache: Cache) -> None:
        self._model, self._attention = model, attention
        self.cache = cache
        self.attention, self.update = Timed(function), Timed(cache.update)
        self.steps: list[float] = []
        cache.update = self.update

    def decode(self, token: Tensor, count: int) -> None:
        """The same token for all rows [R, 1], so many times."""
        AttentionInterface.register(self._attention, self.attention)
        self._model.set_attn_implementation(self._attention)
        for number in range(count):
            begin = time.thread_time()
            with torch.no_grad():
                self._model(token, cache=self.cache)
            self.steps.append(time.thread_time() - begin)
            if number < WARM_UP:
                self.forget(1)

    def forget(self, steps: int) -> None:
        """Leaves the last steps out of what was timed."""
        layers = self._model.config.num_hidden_layers
        del self.steps[-steps:], self.update.seconds[-steps * layers :], self.attention.seconds[-steps * layers :]


def build(layers: int, heads: int) -> PreTrainedModel:
    """A random model."""
    return random_llama(
        layers=layers,
        query_heads=heads * GROUP,
        kv_heads=heads,
        head_dim=DIM,
        hidden=HIDDEN,
        vocabulary=VOCABULARY,
    )


def prefilled(model: PreTrainedModel, cache: Cache, attention: str, rows: int) -> Cache:
    """The cache with a prompt."""
    model.set_attn_implementation(attention)
    ids = torch.randint(0, VOCABULARY, (rows, PROMPT), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        model(ids, cache=cache, logits_to_keep=1)
    return cache


def contenders(model: PreTrainedModel, setting: Setting) -> tuple[Contender, Contender, Contender]:
    """The compressed cache, DynamicCache, and nothing."""
    model.set_attn_implementation("winnow")
    ours = winnow.CompressedCache(model, f"snapkv @ {KEPT}", fold_every=FOLD_EVERY if setting.folds else None)
    functions = AttentionInterface()
    made = (("winnow", functions["winnow"], ours), ("sdpa", functions["sdpa"], DynamicCache()))
    first, second = (
        Contender(model, name, function, prefilled(model, cache, name, setting.rows)) for name, function, cache in made
    )
    return first, second, Contender(model, "nothing", functions["nothing"], Handing())


def measure(setting: Setting, layers: int, turns: int) -> Row:
    """One setting."""
    library = native.loaded_library()
    step = library.winnow_step
    kernel = Timed(step)
    vars(library)["winnow_step"] = kernel  # steps that are made from here on call it
    try:
        ours, dynamic, nothing = contenders(build(layers, setting.heads), setting)
        token = torch.ones(setting.rows, 1, dtype=torch.int64)
        for turn in range(turns):
            for each in (ours, dynamic, nothing):
                each.decode(token, TURN)
            if turn % 4 == 3:  # contexts stay short
                for each in (dynamic,) if setting.folds else (ours, dynamic):
                    each.cache.crop(-4 * TURN)
    finally:
        vars(library)["winnow_step"] = step
    return summed_up(setting, layers, (ours, dynamic, nothing), kernel)


def summed_up(setting: Setting, layers: int, made: Sequence[Contender], kernel: Timed) -> Row:
    """Medians of seconds as microseconds per layer."""
    ours, dynamic, nothing = made

    def microseconds(seconds: Sequence[float]) -> float:
        return 1e6 * median(seconds)

    def of(contender: Contender) -> float:
        return microseconds(contender.update.seconds) + microseconds(contender.attention.seconds)

    return Row(
        **asdict(setting),
        ours=of(ours) - microseconds(kernel.seconds),
        kernel=microseconds(kernel.seconds),
        dynamic=of(dynamic),
        nothing=of(nothing),
        model=microseconds(nothing.steps) / layers,
    )


def table(rows: Sequence[Row]) -> str:
    """Microseconds per layer for people."""
    head = [
        "KV heads",
        "rows",
        "tail",
        "ours, without the kernel, µs",
        "kernel, µs",
        "DynamicCache and sdpa, µs",
        "ours with the kernel, of that",
        "calls that do nothing, µs",
        "a layer with those, µs",
    ]
    body = [
        [
            str(row.heads),
            str(row.rows),
            f"folded every {FOLD_EVERY}" if row.folds else "grows",
            f"{row.ours:.1f}",
            f"{row.kernel:.1f}",
            f"{row.dynamic:.1f}",
            f"{row.ratio:.2f}",
            f"{row.nothing:.1f}",
            f"{row.model:.0f}",
        ]
        for row in rows
    ]
    return markdown_table(head, body)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--heads", default="1,8", help="KV heads")
    parser.add_argument("--rows", default="1,4", help="sequences of a batch")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--turns", type=int, default=32, help=f"of {TURN} steps each")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    if native.library() is None:
        parser.error("without the compiled kernels there is no kernel to tell apart")
    torch.set_num_threads(1)
    heads, batches = ([int(each) for each in listed.split(",")] for listed in (args.heads, args.rows))
    rows = []
    for setting in itertools.starmap(Setting, itertools.product(heads, batches, (False, True))):
        rows.append(measure(setting, args.layers, args.turns))
        print(table(rows[-1:]), flush=True)
    text = (
        f"# Decode steps around the kernel\n\n`python benchmarks/decode_overhead.py`: microseconds per layer of a "
        f"model with {args.layers} random layers (width {HIDDEN}, D {DIM}, {GROUP} query heads per KV head), of whose "
        f"prompts all {KEPT} tokens are kept. The kernel's time is that of the compiled library's one call, which "
        f"copies the new token into the cache and attends. {machine()}\n\n{table(rows)}\n"
    )
    write_results(args.out, of_this_processor("decode_overhead"), text, [asdict(row) for row in rows])


if __name__ == "__main__":
    main()
