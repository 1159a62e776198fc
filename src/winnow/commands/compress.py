"""`winnow compress`: a document, compressed once into a file, for `winnow ask`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.markup import escape
from rich.table import Table
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from winnow.bundled import NAME, is_bundled
from winnow.commands.console import messages, output
from winnow.commands.formats import written_bytes, written_seconds, written_share, written_slots
from winnow.commands.inputs import InputError, build_methods, check_memory, prepare_folder, read_document
from winnow.commands.options import (
    BUNDLED_MODEL,
    BudgetOption,
    ChunkOption,
    Device,
    DeviceOption,
    Dtype,
    DtypeOption,
    MethodOption,
    ModelOption,
    SettingsOption,
)
from winnow.evaluate.answering import CompressedDocument, compress_document
from winnow.evaluate.prompts import document_tokens, encode_prompt
from winnow.models import ModelSource, load_model, open_model

PROBES = ("Why?", "who is it?", "5?", "“Yes”?", '"Yes"?', "(a) or (b)?", "É?", "何?")
"""Questions that begin in different ways: tokens before the question are those that all prompts share."""


class Saved(NamedTuple):
    """A context on disk, with what it took."""

    path: Path
    compressed: CompressedDocument
    write_seconds: float


def compress(
    document: Annotated[str, typer.Argument(metavar="DOC", help="Text file; - for standard input.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Where the context goes (safetensors).")],
    model: ModelOption = BUNDLED_MODEL,
    method: MethodOption = "adakv",
    budget: BudgetOption = None,
    settings: SettingsOption = None,
    chunk: ChunkOption = None,
    device: DeviceOption = Device.AUTO,
    dtype: DtypeOption = Dtype.AUTO,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
) -> None:
    """Compress a document once and save it; `winnow ask` puts questions to it, as often as you like."""
    (chosen,) = build_methods(method, None, budget, settings or [])
    check_memory([chosen], device)
    _check_target(out, force)
    with messages().status("Reading the document"):
        text = read_document(document)
        source = open_model(model)
        tokens = document_start(source.tokenizer, text)
    _check_context(source, tokens)
    with messages().status("Loading the model"):
        loaded = load_model(source, device, dtype)
    with messages().status(f"Prefilling and compressing {tokens.shape[1]:,} tokens: {escape(str(chosen))}") as status:
        compressed = compress_document(loaded, chosen, tokens, chunk)
        status.update(f"Writing {escape(str(out))}")
        begin = time.perf_counter()
        compressed.context.save(out, tokenizer=source.tokenizer, document=text, overwrite=force)
    _show(loaded, Saved(out, compressed, time.perf_counter() - begin))


def document_start(tokenizer: PreTrainedTokenizerBase, document: str) -> Tensor:
    """[1, M] the tokens that every prompt of a document begins with, whatever is asked."""
    prompts = [encode_prompt(tokenizer, document, probe) for probe in PROBES]
    return prompts[0][:, : document_tokens(tokenizer, document, prompts)]


def _check_target(path: Path, force: bool) -> None:
    """Before any work, not after it."""
    if path.is_dir():
        raise InputError(f"{path} is a directory; name a file in it.")
    if path.exists() and not force:
        raise InputError(f"{path} exists; give another name, or --force to replace it.")
    prepare_folder(path.parent)


def _check_context(source: ModelSource, tokens: Tensor) -> None:
    if source.context is not None and tokens.shape[1] >= source.context:
        raise InputError(
            f"The document has {tokens.shape[1]:,} tokens and needs room for a question; the model reads "
            f"{source.context:,} at most. Shorten the document, or use a model that reads more."
        )


def _show(model: PreTrainedModel, saved: Saved) -> None:
    console = output()
    compressed = saved.compressed
    stats = compressed.context.stats()
    kind = f"{str(model.dtype).removeprefix('torch.')} on {model.device.type}"
    name = NAME if is_bundled(model.config.name_or_path) else Path(model.config.name_or_path).name
    console.print(
        f"model: {name}, {kind} · document: {compressed.tokens:,} tokens · question seen at compression: no",
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
