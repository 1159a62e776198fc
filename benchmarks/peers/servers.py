"""`winnow serve` and llama.cpp's server under the same requests: how many a second, and how long each client waits.

    python benchmarks/peers/servers.py MODEL.gguf        # writes docs/results/servers-VENDOR.*

All have the same prompts answered greedily, over HTTP, with the weights of the same file. All servers run for the whole
race, and take turns at every number of clients, one of them at work at a time. llama.cpp is built in build/peers the
first time (CMake and a C++ compiler, some minutes).
"""

from __future__ import annotations

import argparse
import itertools
import socket
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from clients import ClientError, Wave, prompt, wave
from contenders import PeerError, rest
from evaluated import RESULTS, ROOT
from llama_build import PACKAGE, SERVER, VERSION, built
from reporting import end_in_order, machine, markdown_table, of_this_processor, write_results
from server_program import Server, ServerError, running, winnow_server
from winnow.commands.console import messages

LLAMA = "llama-server"
ROWS = 8
"""Answers side by side, at most, in all servers."""
ROOM = 8192
"""Tokens of a slot of llama.cpp's server, which has its memory from the beginning."""
METHODS = ("full", "adakv @ 10%")
WEIGHTS = ("int4", "gguf")
SHORTEST = 100
"""Words of the prompt that warms a server up."""
BEFORE = "The above is what you know. Answer in the style of an old sailor."
"""The end of instructions."""
WARM_UP = 12
"""Tokens of the answer that warms a server up."""
TASK = "Write a long story about this, of at least 1,000 words."
"""The end of all prompts: no answer ends before its length does."""


@dataclass(frozen=True)
class Load:
    """The same work for all servers."""

    words: int
    """Those of every prompt, about."""
    requests: int
    clients: Sequence[int]
    tokens: int = 64
    """Those of every answer, at most."""
    shared: int = 0
    """Words of instructions that all prompts have before them, about."""

    def __str__(self) -> str:
        before = f" behind {self.shared:,} words of instructions that all share" if self.shared else ""
        return (
            f"{self.requests} requests with prompts of about {self.words:,} words{before} and answers of {self.tokens} "
            "tokens"
        )


LOADS = (Load(380, 8, (1, 4, 8)), Load(SHORTEST, 8, (1, 8), shared=1400), Load(3600, 4, (1, 4)))
TINY = (Load(SHORTEST, 2, (1, 2), tokens=4), Load(SHORTEST, 2, (2,), tokens=4, shared=SHORTEST))


@dataclass(frozen=True)
class Contender:
    """A server, its weights and its cache, by the names in tables."""

    server: str
    weights: str
    cache: str
    command: Sequence[str] = field(repr=False)


@dataclass(frozen=True)
class Row:
    """A server as its clients saw it: medians over the rounds."""

    prompt_tokens: float
    """Those of instructions included."""
    shared: int
    """Words of instructions that prompts share, about."""
    clients: int
    server: str
    weights: str
    cache: str
    seconds: float
    """Until all requests are answered."""
    requests_per_second: float
    tokens_per_second: float
    """Those of answers."""
    as_fast: float
    """Requests per second, as many times llama.cpp's in the same round."""
    first_seconds: float
    """From a request to the first words of its answer."""
    gap_seconds: float
    """Between two pieces of an answer."""
    long_gap_seconds: float
    """The gap that 95 of 100 do not exceed."""
    resident_bytes: int
    """Memory of the server after this load, weights included."""


def llama_server(program: Path, model: Path, threads: int) -> Contender:
    """llama.cpp's own server."""
    command = [str(program), "--model", str(model), "--host", "127.0.0.1", "--port", str(_free_port())]
    command += ["--threads", str(threads), "--parallel", str(ROWS), "--ctx-size", str(ROWS * ROOM)]
    return Contender(LLAMA, "file", "f16", command)


def contenders(program: Path, model: Path, weights: Sequence[str], methods: Sequence[str]) -> list[Contender]:
    """llama.cpp's server before Winnow's."""
    ours = [
        Contender("winnow serve", each, method, winnow_server(str(model), each, method, ROWS))
        for method in methods
        for each in weights
    ]
    return [llama_server(program, model, torch.get_num_threads()), *ours]


def raced(every: Sequence[Contender], loads: Sequence[Load], rounds: int, tell: Callable[[str], None]) -> list[Row]:
    """All servers under all loads.

    Raises:
        ServerError: one that ended before it served.
    """
    rows: list[Row] = []
    with ExitStack() as stack:
        servers = [stack.enter_context(running(each.command)) for each in every]
        seeds = itertools.count()
        for server in servers:
            wave(server.address, 1, [prompt(SHORTEST, TASK, next(seeds))], WARM_UP)
        for load in loads:
            # Those of another load or round are other ones: no server knows a prompt, or its instructions, before.
            for clients in load.clients:
                tell(f"{load}; clients at once: {clients}")
                waves = [_turns(servers, clients, load, seeds) for _ in range(rounds)]
                rows += [seen_of(at, each, servers[at], load, clients, waves) for at, each in enumerate(every)]
    return rows


def _turns(servers: Sequence[Server], clients: int, load: Load, seeds: Iterator[int]) -> list[Wave]:
    """A round: one wave at every server, all with the same prompts."""
    asked = [prompt(load.words, TASK, next(seeds)) for _ in range(load.requests)]
    shared = prompt(load.shared, BEFORE, next(seeds)) if load.shared else None
    found = []
    for server in servers:
        rest()
        found.append(wave(server.address, clients, asked, load.tokens, shared))
    return found


def seen_of(
    at: int, contender: Contender, server: Server, load: Load, clients: int, rounds: Sequence[Sequence[Wave]]
) -> Row:
    """The row of one server; rounds: waves of all servers, of which llama.cpp's is the first."""
    own = [waves[at] for waves in rounds]
    seconds = statistics.median(each.seconds for each in own)
    gaps = sorted(gap for each in own for gap in each.gaps)
    return Row(
        statistics.median(each.prompt_tokens for each in own),
        load.shared,
        clients,
        contender.server,
        contender.weights,
        contender.cache,
        seconds,
        load.requests / seconds,
        statistics.median(each.answer_tokens / each.seconds for each in own),
        statistics.median(waves[0].seconds / waves[at].seconds for waves in rounds),
        statistics.median(first for each in own for first in each.firsts),
        statistics.median(gaps),
        gaps[int(0.95 * len(gaps))],
        server.resident_bytes(),
    )


def _free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


def table(rows: Sequence[Row]) -> str:
    """A line for every server and number of clients."""
    head = ["tokens of a prompt", "clients", "server", "weights", "cache", "requests/s", "of llama-server's"]
    head += ["answers' tokens/s", "first words after", "between words", "95 % within"]
    body = [
        [
            f"{row.prompt_tokens:,.0f}" + (", most of them shared" if row.shared else ""),
            str(row.clients),
            row.server,
            row.weights,
            f"`{row.cache}`",
            f"{row.requests_per_second:.2f}",
            f"{row.as_fast:.2f}x",
            f"{row.tokens_per_second:.1f}",
            f"{row.first_seconds:.2f} s",
            f"{1e3 * row.gap_seconds:.0f} ms",
            f"{1e3 * row.long_gap_seconds:,.0f} ms",
        ]
        for row in rows
    ]
    return markdown_table(head, body)


def memory(rows: Sequence[Row]) -> str:
    """A line for every server: its memory."""
    last = {(row.server, row.weights, row.cache): row.resident_bytes for row in rows}
    body = [[server, weights, f"`{cache}`", f"{size / 1e6:,.0f} MB"] for (server, weights, cache), size in last.items()]
    return markdown_table(["server", "weights", "cache", "memory"], body)


def page(model: Path, loads: Sequence[Load], rounds: int, rows: Sequence[Row]) -> str:
    """The tables with all that they depend on."""
    work = "; ".join(map(str, loads))
    about = (
        f"`winnow serve` and llama.cpp's `llama-server` (of {PACKAGE} {VERSION}, built for this processor) on "
        f"{model.name}, over HTTP: {work}. A client sends one request after the other. Medians of {rounds} rounds, in "
        "which the servers took turns; in every round and for every number of clients all texts are new. Both are as "
        "they come: llama-server holds the prompts of its slots, Winnow [conversations and shared "
        "starts](../serving.md#shared-starts), and it tries [candidates](../command-line.md#candidates). "
        f"{machine()}"
    )
    notes = (
        "*First words after* is the wait from a request to its answer's first text, behind other clients' prompts; "
        "*between words*, the wait for every further piece, while others' prompts are read, too. *Memory* is what "
        f"was resident after all of it, weights included; llama-server has its {ROWS} slots of {ROOM:,} tokens from "
        "the beginning."
    )
    command = "Regenerate with `python benchmarks/peers/servers.py MODEL.gguf` on a machine that does nothing else."
    return f"# Servers\n\n{about}\n\n{command}\n\n{table(rows)}\n\n{notes}\n\n{memory(rows)}\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and writes the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--llama-server", type=Path, help="the program, if it is built already")
    parser.add_argument("--weights", nargs="+", default=WEIGHTS, help="as `winnow serve` takes them")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="loads in miniature")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args(arguments)
    if options.tiny and options.out.resolve() == RESULTS:
        parser.error("--tiny needs an --out of its own: a miniature would replace what was measured")
    if not options.model.is_file():
        parser.error(f"there is no file {options.model}")
    loads = TINY if options.tiny else LOADS
    try:
        program = options.llama_server or built(SERVER, ROOT / "build" / "peers")
        every = contenders(program, options.model, options.weights, options.methods)
        rows = raced(every, loads, options.rounds, partial(messages().print, soft_wrap=True))
    except (ClientError, PeerError, ServerError, OSError) as problem:
        sys.exit(str(problem))
    text = page(options.model, loads, options.rounds, rows)
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    write_results(options.out, of_this_processor("servers"), text, [asdict(row) for row in rows])


if __name__ == "__main__":
    end_in_order()
    main()
