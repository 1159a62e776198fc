"""Races of llama.cpp and Winnow over models of random weights in 4 bits, whose shapes are all that is known of them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

import winnow
from contenders import Answering, PeerError, rest
from evaluated import RESULTS, ROOT
from llama_build import PACKAGE, TURNS, VERSION, built
from random_blocks import EMBEDDING
from random_models import random_model
from reporting import machine, markdown_table, of_this_processor, write_results
from winnow.commands.console import messages

LLAMA, WEIGHTS = "llama.cpp", "int4"
METHODS = ("full", "adakv @ 5%")
STEPS, ROOM = 16, 2048
"""Tokens of a turn, and those for which there is room after a prompt."""


@dataclass(frozen=True)
class Race:
    """Models that are alike, and the page on them."""

    name: str
    """That of the command, and of the page without the processor's."""
    title: str
    shapes: Mapping[str, PreTrainedConfig]
    write: Callable[[Path, PreTrainedConfig], None]
    """Writes a GGUF file of a shape."""


@dataclass(frozen=True)
class Row:
    """Milliseconds of a model after prompts of a length, by engine and cache."""

    model: str
    depth: int
    prompt: dict[str, float]
    token: dict[str, float]

    def cells(self) -> list[str]:
        """A line of the table."""
        found = [self.model, f"{self.depth:,}"]
        for times in (self.prompt, self.token):
            theirs = times[LLAMA]
            found += [f"{theirs:,.1f} ms", *(f"{times[each]:,.1f} ms, {theirs / times[each]:.2f}x" for each in METHODS)]
        return found


def timed(work: Callable[[], object]) -> float:
    """Milliseconds of a call."""
    start = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - start)


class Engine(Protocol):
    """One that reads a prompt, and decodes after it."""

    def prompt(self) -> float:
        """Milliseconds of the prompt into a new cache."""

    def tokens(self, steps: int) -> float:
        """Mean milliseconds of a token after one that is not timed."""


class Ours:
    """A model of Winnow that reads a prompt, and decodes after it."""

    def __init__(self, model: PreTrainedModel, ids: Tensor, method: str) -> None:
        self._model, self._ids, self._method = model, ids, method
        cache = self._read()
        self._decoder = winnow.GraphedDecoder(model, cache, room=ROOM)
        self.tokens(3)

    def prompt(self) -> float:
        """Milliseconds of the prompt into a new cache."""
        return timed(self._read)

    def tokens(self, steps: int) -> float:
        """Mean milliseconds of a token after one that is not timed, all of them random: experts differ by tokens."""
        first, *others = torch.randint(self._model.config.vocab_size, (1 + steps, 1))
        self._decoder.step(first)
        return timed(lambda: [self._decoder.step(each) for each in others]) / steps

    def _read(self) -> winnow.CompressedCache:
        cache = winnow.CompressedCache(self._model, self._method)
        self._model(self._ids, cache=cache, logits_to_keep=1)
        return cache


class Theirs:
    """llama.cpp on a file of the same shape."""

    def __init__(self, program: Path, model: Path, depth: int, threads: int) -> None:
        room = str(depth + ROOM)
        self._depth, self._threads = depth, threads
        self._answering = Answering([str(program), str(model), room, "f16", "1"], "llama-turns")
        self.prompt()

    def prompt(self) -> float:
        """Milliseconds of a prompt."""
        return self._answering.ask("prompt", self._threads, self._depth)[0]

    def tokens(self, steps: int) -> float:
        """Mean milliseconds of a token after one that is not timed."""
        return self._answering.ask("tokens", self._depth, self._threads, steps)[0]

    def close(self) -> None:
        """Ends the program."""
        self._answering.close()


def measure(race: Race, name: str, program: Path, options: argparse.Namespace) -> Iterator[Row]:
    """A model at every depth."""
    config = race.shapes[name]
    model = random_model(config, WEIGHTS, embedding=EMBEDDING)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        race.write(path, config)
        for depth in options.depths:
            ids = torch.randint(config.vocab_size, (1, depth), generator=torch.Generator().manual_seed(0))
            theirs = Theirs(program, path, depth, options.threads)
            try:
                engines: dict[str, Engine] = {method: Ours(model, ids, method) for method in METHODS}
                engines[LLAMA] = theirs
                prompts = in_turns({who: each.prompt for who, each in engines.items()}, options.prompts)
                tokens = in_turns({who: partial(each.tokens, STEPS) for who, each in engines.items()}, options.rounds)
            finally:
                theirs.close()
            yield Row(name, depth, prompts, tokens)


def in_turns(engines: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Medians of what they tell."""
    told: dict[str, list[float]] = {who: [] for who in engines}
    for _ in range(rounds):
        for who, each in engines.items():
            rest()
            told[who].append(each())
    return {who: median(times) for who, times in told.items()}


def publish(race: Race, rows: Sequence[Row], options: argparse.Namespace) -> None:
    """Prints the table and writes its page."""
    head = [f"{what}, {who}" for what in ("prompt", "token") for who in (LLAMA, *(f"`{each}`" for each in METHODS))]
    table = markdown_table(["model", "prompt", *head], [each.cells() for each in rows])
    text = (
        f"# {race.title}, against llama.cpp\n\n`python benchmarks/peers/{race.name}.py`. {machine()} "
        f"llama.cpp is that of {PACKAGE} {VERSION}, built for this processor, with a cache in f16 and its flash "
        "attention, and reads Q4_0; Winnow's weights are int4, its steps replayed from [graphs](../graphs.md). Both "
        f"have random weights of the same shape, and {options.threads} threads. Engines took turns; medians. Above 1x "
        f"is faster than llama.cpp.\n\n{table}\n"
    )
    print(text)
    write_results(options.out, of_this_processor(race.name), text, [asdict(each) for each in rows])


def arguments(about: str | None) -> argparse.Namespace:
    """The options. about: the command in words."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depths", type=lambda text: [int(each) for each in text.split(",")], default=[512, 4096])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9, help=f"turns of {STEPS} tokens")
    parser.add_argument("--prompts", type=int, default=3, help="times that every prompt is read")
    parser.add_argument("--llama-turns", type=Path, help="the program, if it is built already")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    return parser.parse_args()


@torch.no_grad()
def run(race: Race, about: str | None) -> None:
    """Measures with the options of the command line, and writes the table. about: the command in words."""
    options = arguments(about)
    torch.set_num_threads(options.threads)
    rows = []
    try:
        program = options.llama_turns or built(TURNS, ROOT / "build" / "peers")
        for name in race.shapes:
            for row in measure(race, name, program, options):
                print(row.cells(), flush=True)
                rows.append(row)
    except PeerError as problem:
        messages().print(problem)
        raise SystemExit(1) from None
    publish(race, rows, options)
