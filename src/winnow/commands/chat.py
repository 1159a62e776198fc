"""`winnow chat`: a conversation, about a document if there is one, in a compressed cache."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

import torch
import typer
from rich.console import Console
from rich.markup import escape

from winnow.commands.ahead import method_ahead, tell_of_blind_methods
from winnow.commands.chat_lines import on_terminal, typed_lines
from winnow.commands.chat_reader import Reader, fold_every
from winnow.commands.chat_session import Opened, Session
from winnow.commands.checks import check_context, check_memory
from winnow.commands.compress import PROBES, document_start
from winnow.commands.console import messages, output
from winnow.commands.failures import readable
from winnow.commands.formats import written_bytes, written_share
from winnow.commands.inputs import STANDARD_INPUT, build_methods, read_document, read_questions
from winnow.commands.loading import check_methods, load
from winnow.commands.model_names import model_line
from winnow.commands.opened_context import open_context
from winnow.commands.options.chat import CONVERSATION_METHOD, ChatOptions
from winnow.commands.options.shared import BUNDLED_MODEL
from winnow.commands.progress import stage
from winnow.commands.prompt_options import question_room, shortened, style_of
from winnow.commands.vocabulary import warn_of_unknown_words
from winnow.composition.method import Method
from winnow.errors import Ended, WinnowError
from winnow.evaluate.conversation import Beginning
from winnow.evaluate.turns import Subject, on_one_day
from winnow.models import ModelSource, open_model


def chat(options: ChatOptions) -> None:
    """Answers line by line, until there are no more."""
    opened = _read_before(options) if options.context is None else _saved(options)
    document = opened.reader.subject.document
    foreign = document is not None and warn_of_unknown_words(opened.reader.source, [("the document", document)])
    console = output()
    _print_heading(console, opened)
    session = Session(opened, options, console, foreign)
    if on_terminal():
        console.print("Ask, or /help. Ctrl-C stops an answer, Ctrl-D ends.", style="dim", markup=False)
        _talk(session, typed_lines())
    else:
        _read_out(session, console)


def _read_before(options: ChatOptions) -> Opened:
    """The document, read now; checked from what is cheap to what is not."""
    method = _method(options)
    check_memory([method], options.device)
    every = fold_every(method, options.fold)
    if options.document == STANDARD_INPUT:
        raise typer.BadParameter("standard input is for your questions; name a file.", param_hint="--document")
    if options.document is None and method.budget.unit == "percent":
        raise typer.BadParameter(
            "without a --document there is no prompt to take a share of; give tokens (512) or bytes (64MiB).",
            param_hint="--budget",
        )
    style = style_of(options)
    style.check_question_last()
    document = None if options.document is None else read_document(options.document)
    if document is None and style.template is not None:
        raise typer.BadParameter("needs a --document to put into it.", param_hint="--prompt-template")
    with stage("Reading the tokenizer"):
        source = open_model(options.model)
        # At midnight a conversation goes on with what was read.
        style = on_one_day(source.tokenizer, style, date.today().isoformat())
        tokens = torch.zeros((1, 0), dtype=torch.int64, device="cpu")
        if document is not None:
            if options.truncate:
                document = shortened(source, document, PROBES, style, _conversation_room(source), "The document")
            tokens = document_start(source.tokenizer, document, style)
    check_context(source, tokens.shape[1], "The document", purpose="a question", can_cut=True)
    skeleton = check_methods(source, options, [method], [max(1, tokens.shape[1])], every)
    model = load(source, options, skeleton)
    subject = Subject(document, style)
    reader = Reader(source, model, subject, tokens, options.chunk_size, options.fold)
    return Opened(reader, method, reader.read(method))


def _method(options: ChatOptions) -> Method:
    """Without a document the first question is what is compressed, so that a method may watch its end."""
    if options.document is not None:
        return method_ahead(options)
    (chosen,) = build_methods(options.method or CONVERSATION_METHOD, None, options.budget, options.settings or [])
    return chosen


def _saved(options: ChatOptions) -> Opened:
    """The document of a context in a file."""
    assert options.context is not None
    given = {
        "--document": options.document,
        "--method": options.method,
        "--budget": options.budget,
        "--set": options.settings,
        "--truncate": options.truncate,
        "--dtype": None if options.dtype == "auto" else options.dtype,
        "--weights": None if options.weights == "auto" else options.weights,
    }
    for name, value in given.items():
        if value is not None:
            raise typer.BadParameter("the file of --context sets it already; leave it out.", param_hint=name)
    named = None if options.model == BUNDLED_MODEL else options.model
    found = open_context(options.context, named, options, options)
    tokens = found.context.input_ids.cpu()
    subject = Subject(found.document, found.style)
    reader = Reader(found.source, found.model, subject, tokens, options.chunk_size, options.fold)
    return Opened(reader, found.context.method, Beginning(tokens, found.context.cache))


def _conversation_room(source: ModelSource) -> int:
    """Tokens that a document without its middle leaves: a quarter of what the model reads."""
    return question_room(source) if source.context is None else source.context // 4


def _print_heading(console: Console, opened: Opened) -> None:
    reader, cache = opened.reader, opened.beginning.cache()
    stats = cache.stats()
    parts = [model_line(reader.source, reader.model), str(opened.method)]
    if reader.tokens.shape[1]:
        share = written_share(stats.used_bytes, stats.full_bytes)
        parts += [f"document: {reader.tokens.shape[1]:,} tokens"]
        parts += [f"held: {written_bytes(stats.used_bytes)}, {share} of full"]
    console.print(" · ".join(parts), style="dim", markup=False, soft_wrap=True)
    if reader.subject.document is not None:
        tell_of_blind_methods([opened.method], console)
    if cache.compression.fold_every is None and not opened.method.uncompressed:
        console.print(_growing(opened), style="dim", markup=False, soft_wrap=True)


def _growing(opened: Opened) -> str:
    why = "as --fold 0 says"
    if opened.reader.fold != 0:
        why = (
            "as contexts from files cannot be compressed again"
            if _foldable(opened.method)
            else f"as {opened.method.name} cannot compress it"
        )
    return f"The conversation is kept whole, {why}: memory grows with every token; /stats shows how."


def _foldable(method: Method) -> bool:
    return fold_every(method, None) is not None


def _talk(session: Session, lines: Iterable[str]) -> None:
    """With somebody at a terminal: errors and interrupts end a turn, not the chat."""
    for line in lines:
        try:
            if not session.take(line):
                return
        except WinnowError as problem:
            messages().print(readable(str(problem)), style="red", soft_wrap=True, markup=False)
        except Ended:
            raise
        except KeyboardInterrupt:
            messages().print("Stopped.")


def _read_out(session: Session, console: Console) -> None:
    """From a file or a pipe: what goes wrong ends the command."""
    for line in read_questions():
        console.print(f"> {escape(line)}", soft_wrap=True)
        if not session.take(line):
            return
