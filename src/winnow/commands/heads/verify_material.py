"""The needles, haystacks and questions of a table, put together once more for `winnow heads verify`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import typer

from winnow.bundled import is_bundled
from winnow.commands.batch_file import read_answered
from winnow.commands.heads.needle import example_source, haystack_of, reads_prose
from winnow.commands.heads.prompts_file import is_prompts, read_prompts
from winnow.commands.options.heads.verify import VerifyOptions
from winnow.estimate.cokv.examples import ValidationExample, generated_examples, hash_of
from winnow.estimate.cokv.settings import QUESTION_TOKENS
from winnow.estimate.errors import NotVerifiable
from winnow.estimate.needle.examples import NeedleExample
from winnow.estimate.needle.haystack import Haystack
from winnow.estimate.needle.plan import NeedlePlan
from winnow.estimate.needle.settings import Settings
from winnow.estimate.verify.settings import CokvSettings, NeedleSettings, Source
from winnow.heads import HeadScores
from winnow.models import ModelSource


@dataclass(frozen=True)
class Request:
    """A table to verify, the model that it is of, and the options."""

    table: HeadScores
    source: ModelSource
    options: VerifyOptions


def needle_plan(request: Request, settings: NeedleSettings) -> NeedlePlan:
    """The runs of a table. Raises NotVerifiable where examples or haystack are not those that it comes from."""
    options, tokenizer = request.options, request.source.tokenizer
    needles, haystack = _needles(request, settings), _haystack(request, settings)
    asked = Settings(
        settings.kind, settings.lengths, settings.depths, settings.seed, settings.max_new_tokens, settings.style
    )
    plan = NeedlePlan(tokenizer, asked, needles, haystack)
    made = plan.asked()
    _check_same(request, "--examples", options.examples, settings.examples_source.hash, made["examples_hash"])
    _check_same(request, "--haystack", options.haystack, settings.haystack_source.hash, made["haystack_hash"])
    if options.max_new_tokens is None:
        return plan
    # Checked as the table was made: with room for other answers, haystacks are cut elsewhere.
    return NeedlePlan(tokenizer, replace(asked, max_new_tokens=options.max_new_tokens), needles, haystack)


def _needles(request: Request, settings: NeedleSettings) -> Sequence[NeedleExample]:
    given, source = request.options.examples, settings.examples_source
    _check_given(request, "--examples", given, source)
    path = None if given is None else Path(given)
    found = example_source(path, _is_prose(request, source)).examples(settings.kind, settings.seed)
    if len(found) != settings.examples:
        raise NotVerifiable(
            f"{request.table} comes from {settings.examples} examples, and here are {len(found)}: give the "
            "--examples (and the --haystack) that it was made with."
        )
    return found


def _haystack(request: Request, settings: NeedleSettings) -> Haystack:
    options, source = request.options, settings.haystack_source
    _check_given(request, "--haystack", options.haystack, source)
    return haystack_of(options.haystack, options.repeat, _is_prose(request, source), settings.seed)


def validation_questions(request: Request, settings: CokvSettings) -> tuple[ValidationExample, ...]:
    """The questions of a table. Raises NotVerifiable where they are not those that it comes from."""
    path = request.options.examples
    found = _generated(request, settings) if path is None else _answered(path, request, settings.metric)
    if len(found) != settings.questions:
        raise NotVerifiable(f"{request.table} comes from {settings.questions} questions; {path} has {len(found)}.")
    _check_same(request, "--examples", path, settings.examples_hash, hash_of(found))
    return found


def _generated(request: Request, settings: CokvSettings) -> tuple[ValidationExample, ...]:
    if not is_bundled(request.source.name):
        raise NotVerifiable(f"{request.table} comes from questions that it does not hold: give its --examples.")
    return generated_examples(settings.questions, settings.tokens or QUESTION_TOKENS)


def _answered(path: str, request: Request, metric: str) -> tuple[ValidationExample, ...]:
    if is_prompts(path):
        if request.options.max_new_tokens is not None:
            raise typer.BadParameter(
                f"{path} sets the lengths of its answers; leave it out.", param_hint="--max-new-tokens"
            )
        return read_prompts(path, request.source).examples
    return tuple(ValidationExample(*each) for each in read_answered(path, metric))


def _is_prose(request: Request, source: Source) -> bool:
    return reads_prose(request.source.tokenizer) if source.origin is None else source.origin == "prose"


def _check_given(request: Request, option: str, given: object, source: Source) -> None:
    if source.origin == "file" and given is None:
        raise NotVerifiable(f"{request.table} comes from a file that it does not hold: give its {option}.")


def _check_same(request: Request, option: str, given: object, told: str | None, found: object) -> None:
    if told is not None and told != found:
        raise NotVerifiable(
            f"{request.table} comes from other {option} than {given or 'the built-in ones'}: give what it was made "
            "with, or nothing where it had none."
        )
