"""The prompts of `winnow eval`, written to a file as a protocol puts them to a model, for `winnow heads`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import typer

from winnow.cache.fingerprint import hash_tokenizer
from winnow.commands.checks import prepare_output
from winnow.commands.console import messages
from winnow.commands.eval_lines import limit_line, repeats_lines
from winnow.commands.eval_work import chosen_by, tasks_of
from winnow.commands.model_names import model_name
from winnow.commands.options.eval import EvalOptions
from winnow.commands.progress import progress_bar
from winnow.errors import WinnowError
from winnow.estimate.journal import fingerprint
from winnow.evaluate.example_prompts import PromptRules, fitted
from winnow.files import write_text
from winnow.models import ModelSource
from winnow.runs.groups import different
from winnow.tasks.example import LIKELIHOODS, Task
from winnow.tasks.protocol import Protocol
from winnow.tasks.written import Origin, WrittenPrompt, written_prompt


def write_prompts(path: Path, options: EvalOptions) -> None:
    """Writes a line for every example that the options ask for; nothing is asked, and no weights are loaded.

    Raises WinnowError for a task that the model does not answer in words, and as `winnow eval`.
    """
    for option, given in (("--out", options.out), ("--shard", options.shard)):
        if given is not None:
            raise typer.BadParameter(f"it runs nothing, so leave {option} out.", param_hint="--write")
    prepare_output(path, options.force, ".jsonl")
    chosen, rules = chosen_by(options)
    source, read = tasks_of(options, chosen, rules)
    tasks = [replace(task, examples=different(task.examples)) for task in read]
    for task in tasks:
        if task.judging.metric in LIKELIHOODS:
            raise WinnowError(
                f"{task.name} is judged by probabilities ({task.judging.metric}), but head scores are estimated from "
                "answers: use other --tasks, or another benchmark."
            )
    origin = Origin(
        model_name(source), made_for(source, rules), chosen.name, rules.name, options.split, rules.question_seen
    )
    with progress_bar("Cutting prompts", sum(len(task.examples) for task in tasks)) as bar:
        written = []
        for line in _lines(source, rules, origin, tasks):
            written.append(line)
            bar.advance()
    write_text(path, "".join(json.dumps(line.fields(), ensure_ascii=False) + "\n" for line in written))
    limits = [limit_line(rules, source)] if rules.model_limits else []
    _tell(path, written, [*repeats_lines(sum(len(task.examples) for task in read), len(written)), *limits])


def made_for(source: ModelSource, rules: Protocol) -> str:
    """A hash of everything of a model that cuts and encodes the prompts of a protocol."""
    return fingerprint([hash_tokenizer(source.tokenizer), rules.prompt_limit(source.name), source.context])


def _lines(source: ModelSource, rules: Protocol, origin: Origin, tasks: Sequence[Task]) -> Iterator[WrittenPrompt]:
    for task in tasks:
        judging = task.judging._replace(chat_template=rules.chat_template and task.judging.chat_template)
        room = None if source.context is None else source.context - judging.max_new_tokens
        cut = PromptRules(judging.chat_template, rules.prompt_limit(source.name), room)
        for example in task.examples:
            found = fitted(source.tokenizer, example, cut)
            # Each question cuts the context to its own room, so that what is left does not tell which document it was.
            document = fingerprint(example.context)
            yield written_prompt(origin, task.name, judging, found.example, found.truncated, document)


def _tell(path: Path, written: Sequence[WrittenPrompt], before: Sequence[str]) -> None:
    """A line on what was written, after others."""
    counts = {name: sum(line.task == name for line in written) for name in dict.fromkeys(each.task for each in written)}
    cut = sum(line.truncated for line in written)
    told = f"{path}: {', '.join(f'{count:,} of {name}' for name, count in counts.items())}"
    for line in (*before, told + (f"; {cut:,} lost their middle" if cut else "")):
        messages().print(line, markup=False, soft_wrap=True)
