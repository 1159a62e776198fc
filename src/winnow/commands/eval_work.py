"""The work of `winnow eval`: everything that its options name, read and checked before weights are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import typer

from winnow.cache.fold import check_foldable
from winnow.commands.checks import check_memory, check_workers
from winnow.commands.eval_lengths import check_lengths
from winnow.commands.inputs import build_all
from winnow.commands.loading import check_methods
from winnow.commands.model_names import model_name
from winnow.commands.options.eval import EvalOptions
from winnow.commands.options.values import budget_list
from winnow.commands.progress import stage
from winnow.commands.vocabulary import warn_of_unknown_words
from winnow.composition.method import Method
from winnow.composition.names import method
from winnow.errors import WinnowError
from winnow.metrics import Expected, MetricError, metric
from winnow.models import ModelSource, open_model
from winnow.runs.groups import Group, grouped
from winnow.runs.room import Load
from winnow.tasks.benchmark import Benchmark, Request
from winnow.tasks.example import LIKELIHOODS, Task
from winnow.tasks.protocol import Protocol
from winnow.tasks.protocols import protocol
from winnow.tasks.registry import benchmark
from winnow.tasks.sampling import sampled
from winnow.tasks.split import divides, part_of


class Prompt(NamedTuple):
    """The size of a prompt."""

    context: int
    """Tokens of the context."""
    question: int
    """Tokens of the question behind it."""
    characters: int
    """Characters of both."""

    @property
    def tokens(self) -> int:
        """Tokens of both."""
        return self.context + self.question


@dataclass(frozen=True)
class EvalWork:
    """Everything read and checked; only the weights are missing."""

    source: ModelSource
    benchmark: Benchmark
    protocol: Protocol
    tasks: tuple[Task, ...]
    methods: tuple[Method, ...]
    shard: tuple[int, int]
    options: EvalOptions

    def groups(self, batch: int) -> tuple[Group, ...]:
        """Groups for so many questions side by side."""
        # A context that is compressed alone is read once, whatever number of questions there is.
        return tuple(grouped(self.tasks, batch if self.protocol.question_seen else None))

    @property
    def most_prompt_tokens(self) -> int | None:
        """Tokens of a prompt at most: what the protocol leaves of it, and what the model can read."""
        limits = (self.protocol.prompt_limit(self.source.name), self.source.context)
        return min((limit for limit in limits if limit is not None), default=None)

    @cached_property
    def longest(self) -> Prompt:
        """The longest prompt by its characters, whole."""
        examples = [example for task in self.tasks for example in task.examples]
        longest = max(examples, key=lambda each: len(each.context) + len(each.question))
        context, question = map(self.source.count_tokens, (longest.context, longest.question))
        return Prompt(context, question, len(longest.context) + len(longest.question))

    @cached_property
    def largest(self) -> Load:
        """The longest prompt as it will be read."""
        longest = self.longest
        most = longest.tokens if self.most_prompt_tokens is None else self.most_prompt_tokens
        return Load(
            context=min(longest.context, max(0, most - longest.question)),
            question=min(longest.question, most),
            answer=max(task.judging.max_new_tokens for task in self.tasks),
            seen=self.protocol.question_seen,
            methods=self.methods,
            together=min(self.options.together, len(self.methods)),
            fold_every=self.options.fold,
        )

    @property
    def most_questions(self) -> int:
        """Questions about one context, at most."""
        return max(len(group.examples) for group in grouped(self.tasks, None))


def prepare(options: EvalOptions) -> EvalWork:
    """Checks what is cheap first: names, methods, the tokenizer, texts, shapes."""
    chosen, rules = chosen_by(options)
    shard = options.part or (0, 1)
    methods = _methods(options)
    check_memory(methods, options.device)
    check_workers(options, options.device_map)
    if options.fold is not None and options.together > 1:
        raise typer.BadParameter(
            "methods that fold cannot be decoded side by side; leave out --together or --fold.", param_hint="--together"
        )
    if options.fold is not None:
        for each in methods:
            if not each.uncompressed:
                check_foldable(each, options.fold)
    source, tasks = tasks_of(options, chosen, rules)
    work = EvalWork(source, chosen, rules, tasks, methods, shard, options)
    # The longest prompt needs the most bytes for what is always kept.
    longest = work.largest.tokens if rules.question_seen else work.largest.context
    check_methods(source, options, methods, [longest] if longest else [], options.fold)
    _warn_of_unknown_words(source, tasks)
    return work


def chosen_by(options: EvalOptions) -> tuple[Benchmark, Protocol]:
    """The benchmark and the protocol that options name. Raises BadParameter where the options do not fit them."""
    chosen, rules = benchmark(options.benchmark), protocol(options.protocol)
    _check_protocol(chosen, rules, options)
    return chosen, rules


def tasks_of(options: EvalOptions, chosen: Benchmark, rules: Protocol) -> tuple[ModelSource, tuple[Task, ...]]:
    """The model, its weights not loaded, and the examples that are asked for.

    Raises WinnowError where there are none, or some that the model cannot read or the task's metric cannot judge.
    """
    with stage("Reading the tokenizer"):
        source = open_model(options.model)
    request = _request(options, rules, source)
    with stage(f"Reading {chosen.name}"):
        if chosen.lengths:
            check_lengths(source, chosen, rules, request)
        tasks = tuple(_part(task, rules, options) for task in chosen.load(request))
    tasks = tuple(task for task in tasks if task.examples)
    if not tasks:
        raise WinnowError(
            f"{chosen.name} has no example in the {options.split} part of {rules.name}; choose another --split."
        )
    for task in tasks:
        _check_room(source, task)
        if task.judging.metric not in LIKELIHOODS:
            _check_judged(task)
    return source, tasks


def _part(task: Task, rules: Protocol, options: EvalOptions) -> Task:
    """The examples of a task that are asked for, of the part that is."""
    part = part_of(task, rules.validation, options.split)
    if not divides(rules.validation, options.split):
        return part
    # Drawn from the part: what is held out must not depend on how many are drawn.
    return replace(part, examples=sampled(part.examples, options.examples, options.seed))


def _check_room(source: ModelSource, task: Task) -> None:
    """Raises WinnowError where what the model writes, or judges, leaves no room for a prompt."""
    if source.context is not None and task.judging.max_new_tokens >= source.context:
        raise WinnowError(
            f"Answers to {task.name} have up to {task.judging.max_new_tokens:,} tokens, but {model_name(source)} reads "
            f"only {source.context:,} in all, prompt included: use a model that reads more."
        )


def _warn_of_unknown_words(source: ModelSource, tasks: Sequence[Task]) -> None:
    """Warns of the first example of every task; others are of the same kind."""
    first = ((task, task.examples[0]) for task in tasks)
    warn_of_unknown_words(source, [(task.name, f"{example.context} {example.question}") for task, example in first])


def _check_judged(task: Task) -> None:
    """Raises MetricError, naming the example, where the task's metric cannot judge one."""
    judge = metric(task.judging.metric)
    for example in task.examples:
        try:
            judge.check(Expected(example.answers, example.choices))
        except MetricError as problem:
            raise MetricError(f"{task.name}, example {example.name}: {problem}") from None


def _check_protocol(chosen: Benchmark, rules: Protocol, options: EvalOptions) -> None:
    if rules.benchmarks and chosen.name not in rules.benchmarks:
        raise typer.BadParameter(
            f"{rules.name} is for {' and '.join(rules.benchmarks)}, not for {chosen.name}; winnow benchmarks "
            "--protocols lists all.",
            param_hint="--protocol",
        )
    if options.data is not None and not chosen.data:
        raise typer.BadParameter(
            f"{chosen.name} generates its own texts; leave --data out, or use your texts with winnow eval file.",
            param_hint="--data",
        )
    if options.lengths is not None and not chosen.lengths:
        raise typer.BadParameter(
            f"{chosen.name} is not generated, so its texts have fixed lengths; leave --lengths out.",
            param_hint="--lengths",
        )
    if rules.lengths and not set(_lengths(options)) <= set(rules.lengths):
        raise typer.BadParameter(
            f"{rules.name} has prompts of {_written(rules.lengths)} tokens; leave --lengths out, or use another "
            "protocol.",
            param_hint="--lengths",
        )
    if options.split != "test" and rules.validation is None:
        raise typer.BadParameter(f"{rules.name} holds no examples out; leave --split out.", param_hint="--split")


def _methods(options: EvalOptions) -> tuple[Method, ...]:
    """The full cache first, then all others."""
    found = build_all(options.methods, budget_list(options.budgets))
    if not found:
        raise typer.BadParameter(
            "there is no method in it; give some ('snapkv,adakv@10%'), or full.", param_hint="--methods"
        )
    return tuple(dict.fromkeys([method("full"), *found]))


def _request(options: EvalOptions, rules: Protocol, source: ModelSource) -> Request:
    return Request(
        source.count_tokens,
        tasks=tuple(_listed(options.tasks, "--tasks")),
        # Of a part that is held out, or left, as many are drawn after it is known.
        examples=None if divides(rules.validation, options.split) else options.examples,
        lengths=_lengths(options) or rules.lengths,
        seed=options.seed,
        data=options.data,
    )


def _lengths(options: EvalOptions) -> tuple[int, ...]:
    """Lengths that were asked for; none where the benchmark's or the protocol's own are wanted."""
    return tuple(_number(each) for each in _listed(options.lengths, "--lengths"))


def _written(lengths: Sequence[int]) -> str:
    return " and ".join(f"{each:,}" for each in lengths)


def _listed(text: str | None, option: str) -> list[str]:
    """Parts between commas; none where nothing was given. Raises BadParameter where all that was given is commas."""
    if text is None:
        return []
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found:
        raise typer.BadParameter(f"{text!r} names nothing.", param_hint=option)
    return found


def _number(text: str) -> int:
    if not text.isdecimal() or not int(text) < 2**31:
        raise typer.BadParameter(
            f"{text!r} is not a list of numbers of tokens, such as 2048,4096.", param_hint="--lengths"
        )
    return int(text)
