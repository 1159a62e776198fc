"""`winnow serve`: a model and compressed documents behind HTTP."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Sequence
from functools import partial
from ipaddress import ip_address

import typer
from transformers import PreTrainedModel

from winnow.cache.compressed import CompressedCache
from winnow.commands.chat_reader import fold_every
from winnow.commands.checks import check_memory
from winnow.commands.console import messages, output
from winnow.commands.failures import readable
from winnow.commands.formats import written_bytes, written_seconds, written_share
from winnow.commands.inputs import InputError, build_methods, sampling_of
from winnow.commands.loading import check_methods, load
from winnow.commands.model_names import model_line, model_name
from winnow.commands.opened_context import OpenedContext, open_beside, open_context
from winnow.commands.options.serve import ServeOptions
from winnow.commands.options.shared import BUNDLED_MODEL, PromptOptions
from winnow.commands.progress import stage
from winnow.composition.method import Method
from winnow.errors import MethodError, WinnowError
from winnow.evaluate.turns import Subject
from winnow.models import ModelSource, open_model
from winnow.models.devices import free_memory
from winnow.serve.asked import Begun, Finished
from winnow.serve.beginnings import Beginning
from winnow.serve.engine import Engine, Limits
from winnow.tasks.prompt_style import PromptStyle

try:
    import uvicorn

    from winnow.serve.application import Settings, application
except ModuleNotFoundError as problem:
    raise WinnowError(
        f'winnow serve needs {str(problem.name).partition(".")[0]}: pip install "winnow-kv[serve]"'
    ) from None

LOOPBACK = ("localhost", "127.0.0.1", "::1")
HELD = 4
"""One part in so many of the memory that is free is for conversations that are held; answers need the rest."""
STARTS = 8
"""The same for starts that prompts have in common."""
GRACE = 3
"""Seconds that answers under way are given once the server is to stop."""
FAREWELL = 1
"""Seconds after those, in which whoever is not answered is told so."""


def serve(options: ServeOptions) -> None:
    """Serves until it is interrupted."""
    (method,) = build_methods(options.method, None, options.budget, options.settings or [])
    if method.scorer.replayer is not None:
        raise MethodError(
            f"{method} reads a whole text twice before any question, so it cannot compress conversations: compress a "
            f"text with winnow compress --method {options.method} and pass the file as --context, or name another "
            "method."
        )
    check_memory([method], options.device)
    every = fold_every(method, options.fold)
    if options.api_key == "":
        raise typer.BadParameter("the secret is empty; give one, or leave the option out.", param_hint="--api-key")
    with _listening(options.host, options.port) as listening:
        source, model, contexts = _opened(options, method, every)
        beginnings = _beginnings(options, source, model, method, every, contexts)
        free = free_memory(model)
        limits = Limits(
            rows=options.rows,
            waiting=options.waiting,
            conversations=options.conversations,
            held_bytes=None if free is None else free // HELD,
            starts=options.starts,
            starts_bytes=None if free is None else free // STARTS,
            longest_pause=options.longest_pause,
            candidates=options.lookup,
        )
        settings = Settings(
            max_new_tokens=options.max_new_tokens,
            sampling=sampling_of(options),
            key=options.api_key,
            hosts=tuple(dict.fromkeys((*LOOPBACK, options.host))) if _is_local(listening) else (),
        )
        log, errors = logging.getLogger("winnow.serve"), _Errors(logging.ERROR)
        log.addHandler(errors)
        engine = Engine(source, model, limits)
        site = application(engine, source.tokenizer, beginnings, settings, _print_costs)
        config = uvicorn.Config(
            site, log_level="critical", access_log=False, lifespan="off", timeout_graceful_shutdown=GRACE + FAREWELL
        )
        try:
            # Whoever reads the address may end the server at once.
            _print_heading(options, source, model, beginnings, listening)
            _Server(config, engine).run(sockets=[listening])
        except KeyboardInterrupt:
            pass  # the usual end of a server; uvicorn has let go of its connections
        finally:
            ended = engine.close()
            log.removeHandler(errors)
    messages().print("Stopped.")
    if not ended:
        # The model's thread is within a layer of a long prompt; Python would crash if it went away around it.
        os._exit(0)


class _Server(uvicorn.Server):
    """A server that has its engine refuse what is not answered in time; uvicorn would cut it off without a word."""

    def __init__(self, config: uvicorn.Config, engine: Engine) -> None:
        super().__init__(config)
        self._engine = engine

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends connections once they are answered, or told that they will not be."""
        ending = asyncio.get_running_loop().call_later(GRACE, self._engine.stop)
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()


def _listening(host: str, port: int) -> socket.socket:
    """A socket, before the model is read: a port that is taken is told at once. Raises InputError."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as problem:
        said = getattr(problem, "strerror", None) or problem
        raise InputError(f"nothing can listen at {host}, port {port}: {said}; give another --host or --port.") from None


def _is_local(listening: socket.socket) -> bool:
    """True if nobody but this machine reaches a socket."""
    return ip_address(listening.getsockname()[0].partition("%")[0]).is_loopback


def _opened(
    options: ServeOptions, method: Method, every: int | None
) -> tuple[ModelSource, PreTrainedModel, list[OpenedContext]]:
    """The model, and all contexts, which are one model's."""
    if not options.context:
        with stage("Reading the tokenizer"):
            source = open_model(options.model)
        skeleton = check_methods(source, options, [method], fold_every=every)
        return source, load(source, options, skeleton), []
    for name, given in (("--dtype", options.dtype), ("--weights", options.weights)):
        if given != "auto":
            raise typer.BadParameter("the file of --context sets it already; leave it out.", param_hint=name)
    named, asked = None if options.model == BUNDLED_MODEL else options.model, PromptOptions()
    first, *others = options.context
    opened = open_context(first, named, options, asked)
    contexts = [opened, *(open_beside(path, opened, asked) for path in others)]
    return opened.source, opened.model, contexts


def _beginnings(
    options: ServeOptions,
    source: ModelSource,
    model: PreTrainedModel,
    method: Method,
    every: int | None,
    contexts: Sequence[OpenedContext],
) -> list[Beginning]:
    """The model as it is, then with every document. Raises what is wrong with the method, and for a name twice."""
    style = PromptStyle(chat_template=not options.no_chat_template, system=options.system)

    def made(length: int) -> CompressedCache:
        return CompressedCache(model, method, prompt_length=length, fold_every=every, fold_turns=every)

    made(1)  # what a method lacks is told now
    found = [Beginning(options.name or model_name(source), method, Subject(None, style), (), made)]
    for each in contexts:
        subject, tokens = Subject(each.document, each.style), tuple(each.context.input_ids[0].tolist())
        nbytes = each.context.cache().stats().held_bytes
        found.append(Beginning(each.path.stem, each.context.method, subject, tokens, partial(_forked, each), nbytes))
    names = [each.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise typer.BadParameter(f"two models would have the name {name}; rename a file, or give --name.")
    return found


def _forked(opened: OpenedContext, length: int) -> CompressedCache:
    return opened.context.cache()


def _print_heading(
    options: ServeOptions,
    source: ModelSource,
    model: PreTrainedModel,
    beginnings: Sequence[Beginning],
    listening: socket.socket,
) -> None:
    console = output()
    for number, each in enumerate(beginnings):
        about = f"{each.method}" if not number else f"document: {len(each.tokens):,} tokens, {each.method}"
        line = model_line(source, model) if not number else each.name
        console.print(f"{line} · {about}", style="dim", markup=False, soft_wrap=True)
    host = f"[{options.host}]" if ":" in options.host else options.host
    address, names = f"http://{host}:{listening.getsockname()[1]}/v1", ", ".join(each.name for each in beginnings)
    console.print(f"{address} serves {names}. Ctrl-C stops.", markup=False, soft_wrap=True)
    if not _is_local(listening) and options.api_key is None:
        messages().print(
            "Anybody who reaches this address can ask; --api-key demands a secret.", style="yellow", soft_wrap=True
        )


def _print_costs(name: str, begun: Begun, finished: Finished) -> None:
    """A line about an answer."""
    costs = finished.costs
    held = f" ({begun.held_tokens:,} held)" if begun.held_tokens else ""
    messages().print(
        f"{name}: {begun.prompt_tokens:,} tokens{held} read in {written_seconds(costs.read_seconds)}, "
        f"{finished.tokens:,} said in {written_seconds(costs.answer_seconds)} · "
        f"held: {written_bytes(costs.held_bytes)}, {written_share(costs.held_bytes, costs.full_bytes)} of full",
        style="dim",
        markup=False,
        soft_wrap=True,
    )


class _Errors(logging.Handler):
    """A line for every error of the server that is nobody's request to blame for."""

    def emit(self, record: logging.LogRecord) -> None:
        problem = record.exc_info[1] if record.exc_info else None
        about = f": {type(problem).__name__}: {problem}" if problem is not None else ""
        messages().print(readable(f"{record.getMessage()}{about}"), style="red", markup=False, soft_wrap=True)
