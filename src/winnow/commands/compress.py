"""`winnow compress`: a document, compressed once into a file, for `winnow ask`."""

from __future__ import annotations

import time
from datetime import date
from pathlib import Path
from typing import NamedTuple

from rich.markup import escape
from rich.table import Table
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from winnow.cache.container import check_name
from winnow.cache.replay import words_in
from winnow.commands.ahead import method_ahead, tell_of_blind_methods
from winnow.commands.checks import check_context, check_memory, prepare_output
from winnow.commands.console import messages, output
from winnow.commands.formats import written_bytes, written_seconds, written_share, written_slots
from winnow.commands.inputs import read_document
from winnow.commands.loading import load
from winnow.commands.model_names import model_line
from winnow.commands.options.compress import CompressOptions
from winnow.commands.prefill_progress import reading, tokens_read
from winnow.commands.progress import stage
from winnow.commands.prompt_options import question_room, shortened, style_of
from winnow.commands.vocabulary import warn_of_unknown_words
from winnow.evaluate.answering import CompressedDocument, compress_document
from winnow.evaluate.prompts import document_tokens, encode_prompt
from winnow.evaluate.turns import on_one_day
from winnow.models import ModelSource, open_model
from winnow.tasks.prompt_style import USUAL, PromptStyle

PROBES = ("Why?", "who is it?", "5?", "“Yes”?", '"Yes"?', "(a) or (b)?", "É?", "何?")
"""Questions that begin in different ways: tokens before the question are those that all prompts share."""


class Saved(NamedTuple):
    """A context on disk, with what it took."""

    path: Path
    compressed: CompressedDocument
    write_seconds: float


def compress(options: CompressOptions) -> None:
    """Writes the context of a document."""
    chosen = method_ahead(options)
    check_memory([chosen], options.device)
    out = options.out
    prepare_output(out, options.force)
    check_name(out)
    style = style_of(options)
    style.check_question_last()
    with stage("Reading the document"):
        text = read_document(options.document)
        source = open_model(options.model)
        # Asked on another day, the file still begins as its questions' prompts do.
        style = on_one_day(source.tokenizer, style, date.today().isoformat())
        if options.truncate:
            text = shortened(source, text, PROBES, style, question_room(source), "The document")
        tokens = document_start(source.tokenizer, text, style)
    check_context(source, tokens.shape[1], "The document", purpose="a question", can_cut=True)
    warn_of_unknown_words(source, [("the document", text)])
    tell_of_blind_methods([chosen], messages())
    loaded = load(source, options)
    words = words_in(source.tokenizer, style.chat_template)
    with reading(loaded, tokens_read(chosen, tokens.shape[1], words)):
        compressed = compress_document(loaded, chosen, tokens, options.chunk_size, words=words)
    with stage(f"Writing {out}"):
        begin = time.perf_counter()
        compressed.context.save(
            out, tokenizer=source.tokenizer, document=text, prompt=style.facts(), overwrite=options.force
        )
    _show(source, loaded, Saved(out, compressed, time.perf_counter() - begin))


def document_start(tokenizer: PreTrainedTokenizerBase, document: str, style: PromptStyle = USUAL) -> Tensor:
    """[1, M] the tokens that every prompt of a document begins with, whatever is asked."""
    prompts = [encode_prompt(tokenizer, document, probe, style) for probe in PROBES]
    return prompts[0][:, : document_tokens(tokenizer, document, prompts, style)]


def _show(source: ModelSource, model: PreTrainedModel, saved: Saved) -> None:
    console = output()
    compressed = saved.compressed
    stats = compressed.context.stats()
    console.print(
        f"{model_line(source, model)} · document: {compressed.tokens:,} tokens · question seen at compression: no",
        style="dim",
        markup=False,
    )
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("method")
    columns = {
        "slots per head": written_slots(stats),
        "full cache": written_bytes(stats.full_bytes),
        "held": written_bytes(stats.used_bytes),
        "of full": written_share(stats.used_bytes, stats.full_bytes),
        "file": written_bytes(saved.path.stat().st_size),
        "prefill": written_seconds(compressed.seconds),
        "compressing": written_share(stats.compress_seconds, compressed.seconds),
        "writing": written_seconds(saved.write_seconds),
    }
    for column in columns:
        table.add_column(column, justify="right")
    table.add_row(escape(str(compressed.context.method)), *columns.values())
    console.print(table)
    console.print(f'\nWritten: {saved.path}\nAsk with: winnow ask {saved.path} "…"', soft_wrap=True, markup=False)
