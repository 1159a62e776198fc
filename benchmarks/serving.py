"""Requests of `winnow serve` by 1, 4, 8 and 16 clients at once, over HTTP: how many a second, and tokens a second.

    python benchmarks/serving.py MODEL                # a directory or a GGUF file; writes docs/results/serving.*
    python benchmarks/serving.py --tiny --out build   # the bundled model, in miniature

All have the same 16 prompts answered, greedily; one client sends one after the other. Nothing is held from one request
to the next. Numbers of clients take turns, round by round; medians count.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from clients import ClientError, Wave, prompt, wave
from reporting import RESULTS, end_in_order, machine, markdown_table, write_results
from rounds import Bench, measure
from server_program import ServerError, running, winnow_server
from winnow.bundled import MODEL_PATH
from winnow.commands.model_names import model_name
from winnow.models import open_model

TASK = "What is this text about?"
CLIENTS = (1, 4, 8, 16)
METHODS = ("full", "adakv @ 128")
WEIGHTS = ("auto", "int4")


@dataclass(frozen=True)
class Load:
    """The same work for any number of clients."""

    requests: int
    words: int
    """Those of every prompt, about."""
    tokens: int
    """Those of every answer, at most."""
    clients: Sequence[int]
    rounds: int


USUAL = Load(requests=16, words=380, tokens=32, clients=CLIENTS, rounds=3)
TINY = Load(requests=4, words=100, tokens=4, clients=(1, 2), rounds=1)


@dataclass(frozen=True)
class Row:
    """A number of clients with a method and weights."""

    weights: str
    method: str
    clients: int
    prompt_tokens: float
    """Those of a prompt, in the median."""
    answer_tokens: int
    """Those of all answers."""
    seconds: float
    """Until all requests are answered, in the median."""
    requests_per_second: float
    tokens_per_second: float
    """Those of answers."""
    gain: float
    """Time of one client over the time of these: the median over the rounds."""
    first_seconds: float
    """From a request to the first words of its answer, in the median."""
    gap_seconds: float
    """Between two pieces of an answer, in the median."""


def measured(address: str, weights: str, method: str, load: Load) -> list[Row]:
    """All numbers of clients with one server."""
    asked = [prompt(load.words, TASK, seed) for seed in range(load.requests)]
    waves: dict[str, list[Wave]] = {str(each): [] for each in load.clients}

    def ask(clients: int) -> None:
        waves[str(clients)].append(wave(address, clients, asked, load.tokens))

    bench = measure({str(each): partial(ask, each) for each in load.clients}, load.rounds)
    return [_row(weights, method, each, waves[str(each)][1:], bench, load) for each in load.clients]


def _row(weights: str, method: str, clients: int, waves: Sequence[Wave], bench: Bench, load: Load) -> Row:
    """The row of a number of clients; waves: those of the rounds that count."""
    seconds, said = bench.median(str(clients)), waves[-1].answer_tokens
    return Row(
        weights,
        method,
        clients,
        waves[-1].prompt_tokens,
        said,
        seconds,
        load.requests / seconds,
        said / seconds,
        bench.ratio(str(load.clients[0]), str(clients)),
        statistics.median(first for each in waves for first in each.firsts),
        statistics.median(gap for each in waves for gap in each.gaps),
    )


def table(rows: Sequence[Row]) -> str:
    """A line for every method and number of clients."""
    head = ["weights", "method", "clients", "requests/s", "answers' tokens/s", "as many times one client's"]
    head += ["first words after", "between words"]
    body = [
        [
            row.weights,
            f"`{row.method}`",
            str(row.clients),
            f"{row.requests_per_second:.2f}",
            f"{row.tokens_per_second:.1f}",
            f"{row.gain:.2f}",
            f"{row.first_seconds:.2f} s",
            f"{1e3 * row.gap_seconds:.0f} ms",
        ]
        for row in rows
    ]
    return markdown_table(head, body)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", type=Path, help="a directory or a GGUF file")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--weights", nargs="+", default=WEIGHTS, help="as `winnow serve` takes them")
    parser.add_argument("--rounds", type=int, default=USUAL.rounds)
    parser.add_argument("--tiny", action="store_true", help="the bundled model, in miniature")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args()
    if options.tiny and options.out.resolve() == RESULTS:
        parser.error("--tiny needs an --out of its own: a miniature would replace what was measured")
    if options.model is None and not options.tiny:
        parser.error("name a model: a directory or a GGUF file")
    load = TINY if options.tiny else Load(**{**vars(USUAL), "rounds": options.rounds})
    model = MODEL_PATH if options.model is None else options.model
    rows: list[Row] = []
    for weights, method in itertools.product(options.weights, options.methods):
        # Nothing is held, and every answer is written token by token, also one that is alone.
        nothing = ("--lookup", "0", "--conversations", "0", "--starts", "0")
        command = winnow_server(str(model), weights, method, max(load.clients), *nothing)
        with running(command) as server:
            rows += measured(server.address, weights, method, load)
        print(table(rows[-len(load.clients) :]), flush=True)
    text = page(model_name(open_model(model)), load, rows)
    print(f"\n{text}")
    records: list[dict[str, Any]] = [asdict(row) for row in rows]
    options.out.mkdir(parents=True, exist_ok=True)
    write_results(options.out, "serving", text, records)


def page(model: str, load: Load, rows: Sequence[Row]) -> str:
    """The table with all that it depends on."""
    about = (
        f"{model} behind `winnow serve --lookup 0`: {load.requests} prompts of {rows[0].prompt_tokens:,.0f} tokens, "
        f"answers of {load.tokens} tokens at most, all of them side by side where as many clients ask. Medians of "
        f"{load.rounds} rounds, in which the numbers of clients took turns. {machine()}"
    )
    end = "Prompts are read one by one, whoever sends them: what clients at once save is the answers' part."
    command = "Regenerate with `python benchmarks/serving.py MODEL`."
    return f"# Serving\n\n{about}\n\n{command}\n\n{table(rows)}\n\n{end}\n"


if __name__ == "__main__":
    end_in_order()
    try:
        main()
    except (ClientError, ServerError) as problem:
        sys.exit(str(problem))
