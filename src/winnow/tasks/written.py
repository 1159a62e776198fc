"""Written prompts: examples of a benchmark in a file, as its protocol puts them to one model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

from winnow.metrics.registry import METRICS
from winnow.tasks.example import Example, Judging
from winnow.tasks.put import Put
from winnow.typed import Between, OneOf, Sized, read_as

VERSION = 1
MARK = "winnow_prompt"
"""A key that every line of such a file has, and no other file of examples."""


@dataclass(frozen=True)
class PromptText:
    """Text of a prompt: context + question + answer_prefix, inside the model's chat template or not."""

    context: str
    question: str
    answer_prefix: str
    chat_template: bool


@dataclass(frozen=True)
class Origin:
    """The benchmark, the protocol and the model that examples were written for; the same in all lines of a file."""

    model: str
    made_for: str
    """A hash of all that cut and encoded the prompts: tokenizer, chat template, limits."""
    benchmark: str
    protocol: str
    split: str
    question_seen: bool
    """True if the question is part of the prompt when it is compressed."""

    def facts(self) -> dict[str, str]:
        """The benchmark's part, for journals and settings."""
        return {"name": self.benchmark, "protocol": self.protocol, "split": self.split}


@dataclass(frozen=True)
class WrittenPrompt:
    """A line of such a file."""

    winnow_prompt: Annotated[int, OneOf((VERSION,))]
    origin: Origin
    task: str
    name: str
    prompt: PromptText
    truncated: bool
    """True if the text lost its middle."""
    answers: Annotated[list[str], Sized(1)]
    choices: list[str]
    metric: Annotated[str, OneOf(tuple(METRICS))]
    max_new_tokens: Annotated[int, Between(1, 1_000_000)]
    first_line: bool
    document: str = ""
    """A hash of the whole context, before any question cut it; none in files of earlier versions."""

    @property
    def put(self) -> Put:
        """The way in which it is put and judged."""
        judging = Judging(self.metric, self.max_new_tokens, self.prompt.chat_template, self.first_line)
        return Put(self.task, judging, self.prompt.answer_prefix)

    def fields(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def written_prompt(
    origin: Origin, task: str, judging: Judging, example: Example, truncated: bool, document: str
) -> WrittenPrompt:
    """The line of an example that keeps to a protocol's rules. judging: its chat template as the protocol has it.

    document: as of `WrittenPrompt`.
    """
    return WrittenPrompt(
        VERSION,
        origin,
        task,
        example.name,
        PromptText(example.context, example.question, example.answer_prefix, judging.chat_template),
        truncated,
        list(example.answers),
        list(example.choices),
        judging.metric,
        judging.max_new_tokens,
        judging.first_line,
        document,
    )


def read_prompt(fields: object) -> WrittenPrompt:
    """The line with these fields. Raises TypedError for what is none."""
    return read_as(WrittenPrompt, fields)
