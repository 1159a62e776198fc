"""Clients of an OpenAI-style server, which ask at once, and what they see of its answers."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from winnow.errors import WinnowError
from winnow.tasks import generate_document

PATIENCE = 3600.0
"""Seconds until a client gives up."""


class ClientError(WinnowError):
    """A request that a server refused."""


@dataclass(frozen=True)
class Heard:
    """An answer as it came to a client."""

    prompt_tokens: int
    answer_tokens: int
    arrivals: Sequence[float]
    """Seconds from the request to every piece of the answer's text."""

    @property
    def gaps(self) -> list[float]:
        """Seconds between two pieces."""
        return [after - before for before, after in zip(self.arrivals, self.arrivals[1:], strict=False)]


@dataclass(frozen=True)
class Wave:
    """All answers to some prompts, asked by clients of which each sends one after the other."""

    seconds: float
    """Until the last answer was whole."""
    heard: Sequence[Heard] = field(repr=False)

    @property
    def answer_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(each.answer_tokens for each in self.heard)

    @property
    def prompt_tokens(self) -> float:
        """Tokens of a prompt, in the median."""
        return statistics.median(each.prompt_tokens for each in self.heard)

    @property
    def firsts(self) -> list[float]:
        """Seconds from each request to its first text."""
        return [each.arrivals[0] for each in self.heard if each.arrivals]

    @property
    def gaps(self) -> list[float]:
        """Seconds between two pieces of an answer, of all answers."""
        return [gap for each in self.heard for gap in each.gaps]


def prompt(words: int, task: str, seed: int) -> str:
    """A text of about so many words, and a task behind it; those of two seeds do not begin alike."""
    return f"{generate_document(seed, tokens=words).text}\n\n{task}"


def wave(address: str, clients: int, asked: Sequence[str], tokens: int, instructions: str | None = None) -> Wave:
    """Answers to prompts, which so many clients ask for: greedy ones of at most so many tokens.

    Args:
        address: that of a server, up to "/v1".
        instructions: the system's message before every prompt; None for none.

    Raises:
        ClientError: the server refused a request.
    """
    ask = partial(_heard, address, tokens, instructions)
    start = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        heard = list(pool.map(ask, asked))
    return Wave(time.perf_counter() - start, heard)


def _heard(address: str, tokens: int, instructions: str | None, asked: str) -> Heard:
    before = [] if instructions is None else [{"role": "system", "content": instructions}]
    body = {
        "messages": [*before, {"role": "user", "content": asked}],
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    request = Request(f"{address}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    arrivals: list[float] = []
    usage: dict[str, int] = {}
    start = time.perf_counter()
    for event in _events(request):
        usage = event.get("usage") or usage
        if any(choice["delta"].get("content") for choice in event["choices"]):
            arrivals.append(time.perf_counter() - start)
    return Heard(usage["prompt_tokens"], usage["completion_tokens"], arrivals)


def _events(request: Request) -> Iterator[dict[str, Any]]:
    """Events that a server sends."""
    try:
        with urlopen(request, timeout=PATIENCE) as response:
            for line in response:
                if line.startswith(b"data: ") and b"[DONE]" not in line:
                    yield json.loads(line.removeprefix(b"data: "))
    except HTTPError as refused:
        raise ClientError(f"{request.full_url} refused a request: {refused.read().decode()}") from None
