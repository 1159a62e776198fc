"""Lengths of generated prompts, held to what a model reads: one that loses its middle loses what it asks for."""

from __future__ import annotations

from dataclasses import replace

from winnow.commands.model_names import model_name
from winnow.errors import WinnowError
from winnow.evaluate.example_prompts import example_tokens
from winnow.models import ModelSource
from winnow.tasks.benchmark import Benchmark, Request
from winnow.tasks.example import LIKELIHOODS, Task
from winnow.tasks.protocol import Protocol


def check_lengths(source: ModelSource, chosen: Benchmark, rules: Protocol, request: Request) -> None:
    """Raises WinnowError where a length, with what comes on top of it, is more than the model reads.

    Not under a protocol that cuts prompts before the model would: its prompts are to be cut.
    """
    limit = rules.prompt_limit(source.name)
    if source.context is None or (limit is not None and limit < source.context):
        return
    # One example of each task tells; all of them may take minutes to make.
    most = source.context - max(_on_top(source, rules, task) for task in chosen.load(replace(request, examples=1)))
    too_long = [length for length in request.lengths or chosen.lengths if length > most]
    if too_long:
        raise WinnowError(
            f"{model_name(source)} reads at most {source.context:,} tokens, too few for prompts of "
            f"{' and '.join(f'{length:,}' for length in too_long)} plus what template and task add: use --lengths of "
            f"{most} at most, or a model that reads more."
        )


def _on_top(source: ModelSource, rules: Protocol, task: Task) -> int:
    """Tokens that a length does not count: those around the text, and a continuation that is judged."""
    example = task.examples[0]
    template = rules.chat_template and task.judging.chat_template
    whole = example_tokens(source.tokenizer, example, template).shape[1]
    counted = source.count_tokens(example.context + example.question + example.answer_prefix)
    continuation = task.judging.max_new_tokens if task.judging.metric in LIKELIHOODS else 0
    return whole - counted + continuation
