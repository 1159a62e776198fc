"""`winnow ask`: questions to a document that `winnow compress` put into a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import typer
from rich.console import Console
from rich.markup import escape
from torch import Tensor
from transformers import PreTrainedModel

from winnow.bundled import MODEL_PATH, NAME
from winnow.cache import Context
from winnow.cache.disk import ContextFile
from winnow.commands.answers import AnswerResult, as_json, print_answer
from winnow.commands.batch_file import Asked
from winnow.commands.checks import check_context
from winnow.commands.console import messages, output
from winnow.commands.formats import written_bytes, written_seconds, written_share, written_speed
from winnow.commands.inputs import STANDARD_INPUT, InputError, read_questions
from winnow.commands.model_names import model_line
from winnow.commands.options.ask import AskOptions
from winnow.commands.vocabulary import warn_of_unknown_words
from winnow.evaluate import Answer
from winnow.evaluate.answering import CompressedDocument, ask_afterwards, finish
from winnow.evaluate.prompts import encode_prompt
from winnow.models import DTYPES, ModelSource, load_model, open_model


@dataclass(frozen=True)
class Opened:
    """A context in memory, with what it takes to ask it."""

    path: Path
    model: PreTrainedModel
    source: ModelSource
    context: Context
    document: str

    def answer(self, question: str, max_new_tokens: int) -> Answer:
        """The answer to one question. Raises InputError where it is too long, or does not fit behind the document."""
        prompt = encode_prompt(self.source.tokenizer, self.document, question)
        self._check(prompt)
        limit = min(max_new_tokens, (self.source.context or 1 << 62) - prompt.shape[1])
        # The document was read when the file was made; what counts here is the question.
        document = CompressedDocument(self.context, self.context.input_ids.shape[1], seconds=0.0)
        prefilled = ask_afterwards(self.model, document, prompt)
        return finish(self.model, self.source.tokenizer, prefilled, limit)

    def _check(self, prompt: Tensor) -> None:
        start = self.context.input_ids.cpu()
        if not torch.equal(prompt[:, : start.shape[1]], start) or prompt.shape[1] == start.shape[1]:
            raise InputError(
                f"{self.path} does not hold the start of this question's prompt: the question begins with characters "
                "that run together with the end of the document. Begin it with a word."
            )
        check_context(self.source, prompt.shape[1], "The document with its question")


def ask(options: AskOptions) -> None:
    """Answers the questions from the context in the file."""
    questions = options.questions
    if any(not question.strip() for question in questions):
        raise typer.BadParameter("it cannot be empty.", param_hint="QUESTION")
    opened = _open(options.file, options.model, options.device)
    results = _results(opened, _each(questions), options.max_new_tokens)
    if options.as_lines:
        for result in results:
            print(as_json(result, opened.source.name), flush=True)
    else:
        _show(opened, results, several=len(questions) > 1 or STANDARD_INPUT in questions)


def _open(path: Path, named: str | None, device: str) -> Opened:
    """From what is cheap to check to what is not: header, tokenizer, content, weights."""
    file = ContextFile.open(path)
    with messages().status("Reading the context"):
        source = open_model(named or _model_name(file))
        file.check_config(source.config)
        _check_askable(path, file)
        file.check_tokenizer(source.tokenizer)
        file.verify()
        document = file.document
    if document is None:
        raise InputError(f"{path} was saved without its document: give context.save the text (document=...).")
    with messages().status("Loading the model"):
        loaded = load_model(source, device, file.model.dtype if file.model.dtype in DTYPES else "auto")
    return Opened(path, loaded, source, Context(file.cache(loaded), file.input_ids), document)


def _model_name(file: ContextFile) -> str:
    name = file.model.name
    if not name:
        raise typer.BadParameter("the file does not say where its model is; name it.", param_hint="--model")
    return str(MODEL_PATH) if name == NAME else name


def _check_askable(path: Path, file: ContextFile) -> None:
    if not file.has_tokenizer:
        raise InputError(
            f"{path} was saved without its tokenizer, so questions could be cut into other tokens than its document: "
            "give it to context.save (tokenizer=...)."
        )
    if file.input_ids.shape[0] != 1:
        raise InputError(f"{path} holds {file.input_ids.shape[0]} documents; winnow ask asks files of one.")


def _each(questions: Sequence[str]) -> Iterator[str]:
    """The questions in order; those of standard input as they come."""
    for question in questions:
        if question == STANDARD_INPUT:
            yield from read_questions()
        else:
            yield question.strip()


def _results(opened: Opened, questions: Iterator[str], max_new_tokens: int) -> Iterator[AnswerResult]:
    """Answers one by one. Unknown words are warned of in the document, or else in each question that has them."""
    foreign = False
    for number, each in enumerate(questions):
        answer = _answer(opened, each, max_new_tokens)
        if not number:
            foreign = warn_of_unknown_words(opened.source, [("the document", opened.document)])
        if not foreign:
            warn_of_unknown_words(opened.source, [("the question", each)])
        yield AnswerResult(Asked(opened.document, each), answer)


def _answer(opened: Opened, question: str, max_new_tokens: int) -> Answer:
    with messages().status("Answering"):
        return opened.answer(question, max_new_tokens)


def _show(opened: Opened, results: Iterator[AnswerResult], several: bool) -> None:
    console = output()
    answers: list[Answer] = []
    try:
        for result in results:
            if not answers:
                _print_heading(console, opened)
            if several:
                console.print(escape(result.asked.question), soft_wrap=True)
            print_answer(console, result, with_method=False)
            answers.append(result.answer)
    finally:
        # Also when interrupted: what was answered counts.
        if answers:
            _print_costs(console, answers)


def _print_heading(console: Console, opened: Opened) -> None:
    stats = opened.context.stats()
    console.print(
        f"{model_line(opened.source, opened.model)} · "
        f"document: {opened.context.input_ids.shape[1]:,} tokens, {opened.context.method} · "
        f"held: {written_bytes(stats.used_bytes)}, {written_share(stats.used_bytes, stats.full_bytes)} of full",
        style="dim",
        markup=False,
        soft_wrap=True,
    )


def _print_costs(console: Console, answers: Sequence[Answer]) -> None:
    steps, seconds = sum(each.decode_steps for each in answers), sum(each.decode_seconds for each in answers)
    first = sum(each.prefill_seconds for each in answers) / len(answers)
    speed = written_speed(steps / seconds if steps and seconds else None)
    console.print(f"first token after {written_seconds(first)} · decode {speed}", style="dim", markup=False)
