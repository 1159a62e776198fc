"""A context that `winnow compress` wrote, opened with all that it takes to ask it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import typer
from torch import Tensor
from transformers import PreTrainedModel

from winnow.cache import Context
from winnow.cache.disk import ContextFile
from winnow.commands.checks import check_context
from winnow.commands.inputs import InputError
from winnow.commands.loading import load
from winnow.commands.options.shared import DeviceOptions, ModelOptions, PromptOptions
from winnow.commands.progress import stage
from winnow.commands.prompt_options import style_of
from winnow.evaluate.prompts import encode_prompt
from winnow.evaluate.turns import on_one_day
from winnow.models import DTYPES, WEIGHTS, ModelSource, open_model
from winnow.tasks.prompt_style import PromptStyle

_PROBE = "What is it?"
"""A question that begins with a word; any would do."""


@dataclass(frozen=True)
class OpenedContext:
    """A context in memory, with its model and the text of its document."""

    path: Path
    model: PreTrainedModel
    source: ModelSource
    context: Context
    document: str
    style: PromptStyle

    def prompt(self, question: str) -> Tensor:
        """[1, N] the context's tokens with a question.

        Raises InputError where it is too long, or does not fit behind the document.
        """
        prompt = encode_prompt(self.source.tokenizer, self.document, question, self.style)
        if not _begins(prompt, self.context.input_ids.cpu()):
            raise InputError(
                f"{self.path} does not hold the start of this question's prompt: the question's first characters form "
                "a token with the end of the document. Begin the question with a word."
            )
        check_context(self.source, prompt.shape[1], "The document with its question")
        return prompt


def open_context(path: Path, named: str | None, where: DeviceOptions, asked: PromptOptions) -> OpenedContext:
    """Opens a file, from what is cheap to check to what is not: header, tokenizer, content, weights.

    named: the model, or None for the one that the file names. asked: what is said here about the prompt; all else is
    as the file was made with.
    """
    file = ContextFile.open(path)
    name, document = named or _model_name(file), _askable_document(path, file)
    with stage("Opening the model"):
        source = open_model(name)
    style = _style(path, file, source, document, asked)
    loaded = load(source, _model_options(file, where), can_choose=False)
    return OpenedContext(path, loaded, source, _context(file, loaded), document, style)


def open_beside(path: Path, first: OpenedContext, asked: PromptOptions) -> OpenedContext:
    """Opens another file of the model that is there already; asked: as of `open_context`."""
    file = ContextFile.open(path)
    document = _askable_document(path, file)
    style = _style(path, file, first.source, document, asked)
    return replace(first, path=path, context=_context(file, first.model), document=document, style=style)


def _context(file: ContextFile, model: PreTrainedModel) -> Context:
    return Context(file.cache(model), file.input_ids, file.position_offsets, file.facts.made)


def _style(path: Path, file: ContextFile, source: ModelSource, document: str, asked: PromptOptions) -> PromptStyle:
    """The style of a file's prompts. Raises what is wrong with the file, or with this model for it."""
    file.check_config(source.config)
    file.check_tokenizer(source.tokenizer)
    with stage("Reading the context"):
        file.verify()
        style = style_of(asked, PromptStyle.of_facts(file.prompt, str(path)))
        if file.facts.made is not None:  # what Python saved tells the day in this place only
            style = on_one_day(source.tokenizer, style, file.facts.made.date)
        _check_start(path, file, encode_prompt(source.tokenizer, document, _PROBE, style))
    return style


def _model_options(file: ContextFile, where: DeviceOptions) -> ModelOptions:
    """The model's place, and dtype and weights as the file was made with."""
    told = file.model
    made: dict[str, Any] = {
        "dtype": told.dtype if told.dtype in DTYPES else "auto",
        "weights": told.quantized if told.quantized in WEIGHTS else "auto",
    }
    return ModelOptions(device=where.device, device_map=where.device_map, **made)


def _model_name(file: ContextFile) -> str:
    name = file.model.name
    if not name:
        raise typer.BadParameter("the file does not say which model made it; name the model.", param_hint="--model")
    return name


def _askable_document(path: Path, file: ContextFile) -> str:
    """The document. Raises InputError for a file that says too little, or too much, for questions."""
    if not file.has_tokenizer:
        raise InputError(
            f"{path} was saved without its tokenizer, so the tokens of questions may not match those of its document: "
            "save it again with context.save(..., tokenizer=...)."
        )
    if file.input_ids.shape[0] != 1:
        raise InputError(f"{path} holds {file.input_ids.shape[0]} documents; give a file with one document.")
    document = file.document
    if document is None:
        raise InputError(f"{path} was saved without its document: save it again with context.save(..., document=...).")
    return document


def _check_start(path: Path, file: ContextFile, prompt: Tensor) -> None:
    if not _begins(prompt, file.input_ids):
        raise InputError(
            f"{path} does not hold the start of a prompt about its document: it was compressed with another system "
            "prompt or prompt template, or saved with another text. Give the same --system as to winnow compress, or "
            "compress the document again."
        )


def _begins(prompt: Tensor, start: Tensor) -> bool:
    """True if a prompt [1, N] goes on after a start [1, M]."""
    return prompt.shape[1] > start.shape[1] and torch.equal(prompt[:, : start.shape[1]], start)
