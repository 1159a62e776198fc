"""Files of prompts that `winnow eval --write` wrote, as `--examples` of `winnow heads`."""

from __future__ import annotations

from dataclasses import dataclass

import typer

from winnow.commands.eval_prompts import made_for
from winnow.commands.inputs import STANDARD_INPUT, InputError, read_text
from winnow.commands.model_names import model_name
from winnow.commands.options.shared import PromptOptions
from winnow.errors import JsonError
from winnow.estimate.cokv.examples import ValidationExample
from winnow.metrics import Expected
from winnow.models import ModelSource
from winnow.strict_json import parse_lines
from winnow.tasks.protocols import protocol
from winnow.tasks.written import MARK, Origin, WrittenPrompt, read_prompt
from winnow.typed import TypedError


@dataclass(frozen=True)
class PromptsFile:
    """Examples of a benchmark, as its protocol puts them to one model."""

    origin: Origin
    examples: tuple[ValidationExample, ...]
    documents: tuple[str, ...]
    """A hash of every example's whole context, before it was cut; empty in files of earlier versions."""

    @property
    def most_new_tokens(self) -> int:
        """Tokens of the longest answer."""
        return max(each.put.judging.max_new_tokens for each in self.examples if each.put is not None)


def is_prompts(path: str) -> bool:
    """True if a file is one of such prompts. Raises InputError where it cannot be read."""
    if path == STANDARD_INPUT:
        # It can be read once only, as questions.
        return False
    try:
        _, first = next(parse_lines(read_text(path)), (0, {}))
    except JsonError:
        return False
    return MARK in first


def read_prompts(path: str, source: ModelSource, seen: bool = True) -> PromptsFile:
    """The prompts of a file for this model.

    seen: only those that are compressed with their question are of use. Raises InputError, naming the line, for what is
    no such prompt, and for prompts that belong to another model, or together with other lines do not make a file.
    """
    lines: list[WrittenPrompt] = []
    try:
        for number, fields in parse_lines(read_text(path)):
            try:
                lines.append(read_prompt(fields))
            except TypedError as problem:
                raise InputError(f"{path}, line {number}: {problem}. {_REMEDY}") from None
            if lines[-1].origin != lines[0].origin:
                raise InputError(
                    f"{path}, line {number}: it has another benchmark, protocol, part or model than line 1: give a "
                    "file that one command wrote."
                )
    except JsonError as problem:
        raise InputError(f"{path}, {problem}. {_REMEDY}") from None
    origin = lines[0].origin
    _check_model(path, origin, source)
    if seen and not origin.question_seen:
        raise InputError(
            f"{path} has prompts of {origin.protocol}, which compresses a context before the question is known, but "
            "this command reads both together: write the file with a protocol that sees the question."
        )
    return PromptsFile(origin, tuple(_example(line) for line in lines), tuple(line.document for line in lines))


_REMEDY = "Write the file again: winnow eval BENCHMARK --protocol NAME --write FILE."


def refuse_beside_prompts(path: str, options: PromptOptions, **others: bool) -> None:
    """Raises BadParameter for options that say what the prompts of a file say themselves.

    others: names of options, with True for those that were given.
    """
    given = {
        "system": options.system is not None,
        "no_chat_template": options.no_chat_template,
        "prompt_template": options.prompt_template is not None,
        **others,
    }
    for name, was_given in given.items():
        if was_given:
            raise typer.BadParameter(
                f"it is set by the protocol of the prompts in {path}; leave it out.",
                param_hint=f"--{name.replace('_', '-')}",
            )


def _check_model(path: str, origin: Origin, source: ModelSource) -> None:
    if origin.made_for != made_for(source, protocol(origin.protocol)):
        raise InputError(
            f"{path} has prompts for {origin.model}; {model_name(source)} has another tokenizer, chat template or "
            f"limit. Write them for this model: winnow eval {origin.benchmark} --protocol {origin.protocol} --split "
            f"{origin.split} --model {source.name} --write FILE."
        )


def _example(line: WrittenPrompt) -> ValidationExample:
    expected = Expected(tuple(line.answers), tuple(line.choices))
    return ValidationExample(line.prompt.context, line.prompt.question, expected, line.put)
