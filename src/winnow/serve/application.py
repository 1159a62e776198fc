"""The addresses of the server: OpenAI's for models, chats and completions, and two that tell how it is."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from transformers import PreTrainedTokenizerBase

from winnow.evaluate.sampling import GREEDY, Sampling
from winnow.serve import replies
from winnow.serve.asked import Asked, Begun, Event, Failed, Finished, Said
from winnow.serve.beginnings import Beginning, Prompt, prompt_of
from winnow.serve.calls import Part
from winnow.serve.constrained import grammar_of, is_constrained
from winnow.serve.engine import Engine
from winnow.serve.grammars import Grammar, Grammars
from winnow.serve.heard import Heard
from winnow.serve.refusals import Refused
from winnow.serve.replies import Reply
from winnow.serve.wanted import Wanted, read_chat, read_completion

LARGEST = 64 << 20
"""Bytes of a request, at most."""
LISTENS = 0.5
"""Seconds between two looks whether somebody still waits for a whole answer."""
PATIENCE = 10.0
"""Seconds after which a stream begins before its prompt was read, and between its signs of life: proxies and clients
give up on silence. Until then an error still has a status of its own."""
Finish = Callable[[str, Begun, Finished], None]
"""Told of every answer: the model's name, and its events."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """Whatever requests leave open, and who may ask."""

    max_new_tokens: int = 512
    sampling: Sampling = GREEDY
    key: str | None = None
    """A secret that requests must name."""
    hosts: tuple[str, ...] = ()
    """Names under which the server may be asked, or none for all: with a few no web page can pass for one of them."""


def application(
    engine: Engine,
    tokenizer: PreTrainedTokenizerBase,
    beginnings: Sequence[Beginning],
    settings: Settings,
    finish: Finish = lambda name, begun, finished: None,
) -> Starlette:
    """A server's application; the first beginning serves requests that name no model."""
    site = _Site(engine, tokenizer, {each.name: each for each in beginnings}, settings, finish)
    routes = [
        Route("/v1/models", site.models),
        Route("/v1/models/{name:path}", site.model),
        Route("/v1/chat/completions", site.chat, methods=["POST"]),
        Route("/v1/completions", site.completion, methods=["POST"]),
        Route("/health", site.health),
        Route("/stats", site.stats),
    ]
    handlers: Mapping[Any, Any] = {
        Refused: _refused,
        ClientDisconnect: _gone,
        Exception: _unexpected,
        404: _unknown_address,
        405: _unknown_address,
    }
    return Starlette(routes=routes, exception_handlers=handlers)


class _Site:
    def __init__(
        self,
        engine: Engine,
        tokenizer: PreTrainedTokenizerBase,
        beginnings: dict[str, Beginning],
        settings: Settings,
        finish: Finish,
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._beginnings = beginnings
        self._settings = settings
        self._finish = finish
        self._grammars = Grammars(tokenizer, engine.stops)
        self._compiling = ThreadPoolExecutor(1, "winnow-grammars")
        self._created = int(time.time())

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def stats(self, request: Request) -> Response:
        self._admit(request)
        return JSONResponse(self._engine.counts())

    async def models(self, request: Request) -> Response:
        self._admit(request)
        return JSONResponse(replies.models(list(self._beginnings), self._created))

    async def model(self, request: Request) -> Response:
        self._admit(request)
        return JSONResponse(replies.model(self._beginning(request.path_params["name"]).name, self._created))

    async def chat(self, request: Request) -> Response:
        self._admit(request)
        return await self._answer(request, read_chat(await _body(request)))

    async def completion(self, request: Request) -> Response:
        self._admit(request)
        return await self._answer(request, read_completion(await _body(request)))

    async def _answer(self, request: Request, wanted: Wanted) -> Response:
        beginning, events = self._beginning(wanted.model), _Events()
        most = self._settings.max_new_tokens if wanted.max_new_tokens is None else wanted.max_new_tokens
        # A long text takes its time to be written by a template.
        prompt = await asyncio.to_thread(prompt_of, self._tokenizer, beginning, wanted)
        sampling = wanted.sampling(self._settings.sampling)
        grammar = await self._grammar(wanted, prompt) if is_constrained(wanted) else None
        asked = Asked(beginning, prompt, sampling, most, wanted.stops, events.tell, wanted.answers, grammar)
        reply = Reply(beginning.name, chat=bool(wanted.messages), calls=prompt.form is not None)
        try:
            await asyncio.to_thread(self._engine.ask, asked)
            # As many as the engine takes.
            heard = [Heard(prompt.form, wanted.one_call) for _ in range(wanted.answers)]
            event = await events.next(request, PATIENCE if wanted.stream else math.inf)
            if isinstance(event, Failed):
                raise event.problem
            if not wanted.stream:
                assert isinstance(event, Begun)
                return JSONResponse(await self._whole(request, reply, event, events, heard))
        except BaseException:
            self._engine.cancel(asked)
            raise
        pieces = self._pieces(reply, event, events, heard, wanted.counted)
        return _Stream(pieces, lambda: self._engine.cancel(asked))

    async def _grammar(self, wanted: Wanted, prompt: Prompt) -> Grammar | None:
        """The grammar of the answers. However long schemas take, others' requests do not wait for them."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._compiling, grammar_of, self._grammars, wanted, prompt.form)

    async def _whole(
        self, request: Request, reply: Reply, begun: Begun, events: _Events, heard: Sequence[Heard]
    ) -> dict[str, Any]:
        finished: dict[int, Finished] = {}
        while len(finished) < len(heard):
            event = await events.next(request)
            if isinstance(event, Failed):
                raise event.problem
            if isinstance(event, Said):
                heard[event.number].add(event.text, event.special)
            elif isinstance(event, Finished):
                heard[event.number].end(event.cut)
                finished[event.number] = event
                self._tell(reply.model, begun, event)
        return reply.whole(begun, [(each, finished[index]) for index, each in enumerate(heard)])

    async def _pieces(
        self, reply: Reply, begun: Event | None, events: _Events, heard: Sequence[Heard], counted: bool
    ) -> AsyncIterator[str]:
        """Server-sent events of the answers; begun: the first event, if it came already."""
        try:
            async for piece in self._of_answers(reply, begun, events, heard, counted):
                yield piece
        except Exception as problem:
            yield _line(_unforeseen(problem).body())
        yield "data: [DONE]\n\n"

    async def _of_answers(
        self, reply: Reply, begun: Event | None, events: _Events, heard: Sequence[Heard], counted: bool
    ) -> AsyncIterator[str]:
        """Events of the answers up to the last of them, or to what goes wrong."""
        finished: list[Finished] = []
        for index in range(len(heard)):
            yield _line(reply.first(index))
        while len(finished) < len(heard):
            event = await events.next(None, PATIENCE)
            if event is None:
                yield ": still at work\n\n"
            elif isinstance(event, Begun):
                begun = event
            elif isinstance(event, Said):
                answer = heard[event.number]
                for line in _told(reply, event.number, answer, answer.add(event.text, event.special)):
                    yield line
            elif isinstance(event, Failed):
                yield _line(event.problem.body())
                break
            else:
                assert isinstance(begun, Begun)
                finished.append(event)
                self._tell(reply.model, begun, event)
                answer = heard[event.number]
                for line in _told(reply, event.number, answer, answer.end(event.cut)):
                    yield line
                yield _line(reply.last(answer, event))
                if counted and len(finished) == len(heard):
                    yield _line(reply.counted(begun, finished))

    def _tell(self, name: str, begun: Begun, finished: Finished) -> None:
        """Tells of an answer, which is given whatever becomes of that."""
        try:
            self._finish(name, begun, finished)
        except Exception:
            _log.exception("an answer could not be told of")

    def _beginning(self, name: str | None) -> Beginning:
        """The one that a request names. Raises Refused for what is not served."""
        found = next(iter(self._beginnings.values())) if name is None else self._beginnings.get(name)
        if found is None:
            raise Refused(
                f"there is no model {name!r} here; there are {', '.join(self._beginnings)}.",
                "model",
                status=404,
                code="model_not_found",
            )
        return found

    def _admit(self, request: Request) -> None:
        """Raises Refused for a request to another name, or without the key."""
        hosts, host, key = self._settings.hosts, request.url.hostname, self._settings.key
        if hosts and (host is None or _plain(host) not in map(_plain, hosts)):
            raise Refused(
                f"{host} is not this server, which answers to {', '.join(hosts)} alone as it listens on this machine "
                "only (--host).",
                status=403,
            )
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        # Headers are read as Latin-1.
        if key is not None and not hmac.compare_digest(given.encode("latin-1"), key.encode()):
            raise Refused("the API key is missing or wrong.", status=401, code="invalid_api_key")


class _Stream(StreamingResponse):
    """Server-sent events; a reader who goes away, be it before the first of them, ends the answer."""

    def __init__(self, pieces: AsyncIterator[str], end: Callable[[], None]) -> None:
        # Proxies would gather what comes.
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(pieces, media_type="text/event-stream", headers=headers)
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._end()


class _Events:
    """Events of the engine's thread, as the server's loop awaits them."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Event] = asyncio.Queue()
        self._looked = time.monotonic()

    def tell(self, event: Event) -> None:
        """One more, from another thread."""
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._queue.put_nowait, event)

    async def next(self, request: Request | None, patience: float = math.inf) -> Event | None:
        """The next one; None if there is none after so many seconds.

        Raises ClientDisconnect once nobody waits for the answer to a request any more.
        """
        begun = time.monotonic()
        while (left := begun + patience - time.monotonic()) > 0:
            # Also while event follows event.
            if request is not None and time.monotonic() >= self._looked + LISTENS:
                self._looked = time.monotonic()
                if await request.is_disconnected():
                    raise ClientDisconnect
            with suppress(TimeoutError):
                return await asyncio.wait_for(self._queue.get(), min(LISTENS, left))
        return None


def _plain(host: str) -> str:
    """A host's name as names are compared: DNS knows no capitals, and a dot at the end says that nothing follows."""
    return host.lower().removesuffix(".")


def _line(body: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


def _told(reply: Reply, index: int, heard: Heard, parts: Sequence[Part]) -> Iterator[str]:
    """Pieces of a stream for parts of an answer."""
    for part in parts:
        if isinstance(part, str):
            yield _line(reply.words(index, part))
        else:
            yield _line(reply.call(index, heard.calls.index(part), part))


async def _body(request: Request) -> Any:
    """The JSON of a request. Raises Refused for what is none, or too much."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # Web pages may send other types anywhere without asking.
        raise Refused("the request must be JSON: Content-Type: application/json.", status=415)
    taken = bytearray()
    async for piece in request.stream():
        taken += piece
        if len(taken) > LARGEST:
            raise Refused(f"the request is larger than {LARGEST >> 20} MiB.", status=413)
    try:
        return await asyncio.to_thread(json.loads, bytes(taken))
    except (ValueError, RecursionError) as problem:
        raise Refused(f"the request is no JSON: {problem}.") from None


async def _refused(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, Refused)
    headers = {"Retry-After": "5"} if problem.status == 503 else None
    return JSONResponse(problem.body(), problem.status, headers)


async def _gone(request: Request, problem: Exception) -> Response:
    """The answer to nobody."""
    return Response(status_code=499)


async def _unexpected(request: Request, problem: Exception) -> Response:
    said = _unforeseen(problem)
    return JSONResponse(said.body(), said.status)


def _unforeseen(problem: Exception) -> Refused:
    """The answer to what nobody thought of; the log has where it came from."""
    _log.error("a request failed", exc_info=problem)
    return Refused(f"unexpected error, {type(problem).__name__}: {problem}", status=500)


async def _unknown_address(request: Request, problem: Exception) -> Response:
    status: int = getattr(problem, "status_code", 404)
    said = Refused(f"{request.method} {request.url.path} is not served here.", status=status)
    return JSONResponse(said.body(), status)
