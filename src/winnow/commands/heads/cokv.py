"""`winnow heads cokv`: sliced Shapley values of KV heads, from questions answered by coalitions of heads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from shutil import rmtree
from typing import Any, NamedTuple

import typer
from rich.markup import escape
from rich.table import Table

from winnow.bundled import is_bundled
from winnow.cache.fingerprint import ModelFingerprint
from winnow.cache.hybrid import token_bytes
from winnow.commands.batch_file import read_answered
from winnow.commands.checks import check_apart, check_context, check_workers, prepare_output
from winnow.commands.console import output
from winnow.commands.executors import crew, gpus_for, journal_file
from winnow.commands.heads.cokv_options import read_sizes, stopping_rule
from winnow.commands.heads.cokv_progress import MemoryNeeds, coalitions_watched, tell_screening
from winnow.commands.heads.cokv_table import (
    BENCHMARK,
    EvaluatedPart,
    Origin,
    check_estimate,
    report,
    theorem_line,
    write_table,
)
from winnow.commands.heads.prompts_file import PromptsFile, is_prompts, read_prompts, refuse_beside_prompts
from winnow.commands.inputs import InputError
from winnow.commands.loading import load, spec_of
from winnow.commands.model_names import model_name
from winnow.commands.options.heads.cokv import CokvOptions
from winnow.commands.progress import progress_bar, resumable
from winnow.commands.prompt_options import style_of
from winnow.estimate.asking import asked_tokens
from winnow.estimate.cokv.coverage import check_coverage
from winnow.estimate.cokv.estimator import Estimate
from winnow.estimate.cokv.examples import ValidationExample, check_examples, generated_examples, hash_of
from winnow.estimate.cokv.ledger import Ledger
from winnow.estimate.cokv.plan import Sampled
from winnow.estimate.cokv.prefilled import PromptMemory
from winnow.estimate.cokv.recipe import CoalitionRecipe
from winnow.estimate.cokv.run import check_shards, run_sampled, run_shard, shard_examples
from winnow.estimate.cokv.sampling import PlayerSplits, strata_of
from winnow.estimate.cokv.screening import leave_out_missed, screen
from winnow.estimate.cokv.settings import MAX_NEW_TOKENS, QUESTION_TOKENS, StopRule, Terms
from winnow.estimate.executors.base import Executor
from winnow.estimate.executors.local import LocalExecutor
from winnow.estimate.journal import Journal
from winnow.estimate.shape import TableShape, table_shape
from winnow.heads.cokv_file import Halves
from winnow.heads.storage import SUFFIX
from winnow.metrics import DEFAULT_METRIC, metric
from winnow.models import ModelSource, open_model


@dataclass(frozen=True)
class CoalitionJob:
    """Everything that was asked for, checked; nothing was evaluated yet."""

    recipe: CoalitionRecipe
    plan: Sampled
    players: TableShape
    rule: StopRule
    shard: tuple[int, int] | None
    origin: Origin
    tokens: int | None
    """Length of every document, where the questions are generated."""
    keep_missed: bool
    halves: Halves
    benchmark: dict[str, str] | None = None
    """The benchmark that the examples are of, with protocol and part; None for questions."""

    @property
    def examples(self) -> range:
        """The examples to evaluate: all, or those of the shard."""
        return shard_examples(len(self.recipe.examples), self.shard)


class Found(NamedTuple):
    """The end of an estimation."""

    estimate: Estimate | None
    """None for a shard, which has a part of every utility only."""
    left_out: tuple[int, ...]
    """Examples that the whole cache answers wrong."""


def cokv(options: CokvOptions) -> None:
    """Evaluates coalitions and writes the scores, or for a shard a part of the journal only."""
    check_apart(out=options.out, journal=options.journal)
    prepare_output(options.out, options.force, SUFFIX)
    check_workers(options, options.device_map)
    shard = options.part
    source, validation, prompts = _examples(options)
    check_shards(len(validation), shard[1] if shard else 1)
    most = options.max_new_tokens if prompts is None else prompts.most_new_tokens
    terms = Terms(options.window, most, options.chunk_size, style_of(options), options.metric)
    lengths = _check_lengths(source, validation, terms)
    loaded = load(source, options)
    job = _job(options, source, table_shape(loaded), validation, terms, shard)
    if prompts is not None:
        job = replace(job, benchmark=prompts.origin.facts())
    memory = token_bytes(loaded) * sum(lengths[example] for example in job.examples)
    kept = Journal.open(journal_file(options, shard), _config(job, ModelFingerprint.of(loaded)))
    if options.executor == "local":
        executor: Executor[list[float]] = LocalExecutor(job.recipe.worker(loaded, source.tokenizer))
    else:
        # The workers load their own.
        del loaded
        executor = crew(options, job.recipe)
    with _emptied(job.recipe.memory.folder), executor:
        found = _run(job, executor, kept, memory)
    _finish(job, found, kept, options)


def _job(
    options: CokvOptions,
    source: ModelSource,
    players: TableShape,
    validation: tuple[ValidationExample, ...],
    terms: Terms,
    shard: tuple[int, int] | None,
) -> CoalitionJob:
    splits = PlayerSplits(players.total, read_sizes(options.sizes, players.total), options.seed, options.balanced)
    plan = Sampled(splits, splits.whole_cycles(options.batch))
    rule = stopping_rule(options, len(strata_of(splits.sizes, splits.players, options.halves)))
    check_coverage(plan, rule.samples, options.halves)
    recipe = CoalitionRecipe(spec_of(source, options), players.heads, validation, terms, plan, _memory(options, shard))
    return CoalitionJob(
        recipe,
        plan,
        players,
        rule,
        shard,
        Origin(model_name(source), options.license, options.notes),
        QUESTION_TOKENS if options.examples is None else None,
        options.keep_missed,
        options.halves,
    )


@contextmanager
def _emptied(folder: str | None) -> Iterator[None]:
    """A folder of prompts that is gone before the work, where a killed command left it, and after it."""
    if folder is not None:
        rmtree(folder, ignore_errors=True)
    try:
        yield
    finally:
        if folder is not None:
            rmtree(folder, ignore_errors=True)


def _examples(options: CokvOptions) -> tuple[ModelSource, tuple[ValidationExample, ...], PromptsFile | None]:
    """The model, its weights not loaded, and the examples, with the file of prompts that they are from, if they are."""
    path = options.examples
    if path is not None and options.questions is not None:
        raise typer.BadParameter(
            "it counts generated questions, but --examples has its own; leave one of them out.",
            param_hint="--questions",
        )
    if path is None or not is_prompts(path):
        asked = _questions(options)
        return open_model(options.model), asked, None
    other_length = options.max_new_tokens != MAX_NEW_TOKENS
    refuse_beside_prompts(path, options, metric=options.metric != DEFAULT_METRIC, max_new_tokens=other_length)
    source = open_model(options.model)
    found = read_prompts(path, source)
    return source, found.examples, found


def _questions(options: CokvOptions) -> tuple[ValidationExample, ...]:
    if options.examples is None:
        if not is_bundled(options.model):
            raise InputError("The generated questions are for the bundled model: give --examples for another model.")
        found = generated_examples() if options.questions is None else generated_examples(options.questions)
        check_examples(found, metric(options.metric))
        return found
    return tuple(ValidationExample(*each) for each in read_answered(options.examples, options.metric))


def _check_lengths(source: ModelSource, examples: Sequence[ValidationExample], terms: Terms) -> list[int]:
    """Tokens of every prompt, looked at before any weight is read."""
    found = []
    for number, example in enumerate(examples, start=1):
        document, question, _, put = example
        length = asked_tokens(source.tokenizer, document, question, terms.style, put).shape[1]
        most = terms.max_new_tokens if put is None else put.judging.max_new_tokens
        subject, purpose = f"The prompt of validation example {number}", f"an answer of {most:,}"
        check_context(source, length, subject, most, purpose)
        found.append(length)
    return found


def _memory(options: CokvOptions, shard: tuple[int, int] | None) -> PromptMemory:
    # The nodes of a cluster have other disks, and nobody would clear them.
    folder = None if options.executor == "ray" else str(journal_file(options, shard).resolve()) + ".prompts"
    # Workers on GPUs share one where there are fewer.
    sharing = -(-options.crew_size // max(1, gpus_for(options.device)))
    return PromptMemory(options.prompt_memory, folder, sharing)


def _config(job: CoalitionJob, loaded: ModelFingerprint) -> dict[str, Any]:
    """Everything that a utility depends on; the executor, and how many are wanted, change none."""
    return {
        "task": "cokv",
        "model": job.origin.model,
        "weights": loaded.weights,
        "dtype": loaded.dtype,
        "layers": job.players.layers,
        "heads": job.players.heads,
        "examples": len(job.recipe.examples),
        "examples_hash": hash_of(job.recipe.examples),
        "question_tokens": job.tokens,
        **({} if job.benchmark is None else {BENCHMARK: job.benchmark}),
        **job.recipe.terms.config(),
        **job.plan.config(),
    }


def _run(job: CoalitionJob, executor: Executor[list[float]], journal: Journal, memory: int) -> Found:
    """memory: bytes of all prompts in a cache."""
    ledger = Ledger.journaled(journal, job.plan, len(job.recipe.examples))
    with resumable(journal.path, lambda: f"{len(ledger)} evaluated batches"):
        left_out = _screen(job, executor, ledger)
        needs = MemoryNeeds(memory, job.recipe.memory.limit)
        with coalitions_watched(len(ledger), executor.starting, needs, job.rule.overlap is not None) as watch:
            if job.shard is not None:
                run_shard(job.plan, job.rule.samples, job.shard, executor, ledger, watch, job.halves)
                return Found(None, left_out)
            return Found(run_sampled(job.plan, job.rule, executor, ledger, watch, job.halves), left_out)


def _screen(job: CoalitionJob, executor: Executor[list[float]], ledger: Ledger) -> tuple[int, ...]:
    """The examples that are left out, because the whole cache answers them wrong."""
    with progress_bar("All heads and none", len(job.examples), starting=executor.starting) as bar:
        screening = screen(executor, ledger, job.examples, bar.advance)
    tell_screening(screening, len(job.examples), job.keep_missed)
    if job.keep_missed:
        return ()
    leave_out_missed(ledger, screening)
    return screening.missed


def _finish(job: CoalitionJob, result: Found, journal: Journal, options: CokvOptions) -> None:
    console, found = output(), result.estimate
    if found is None:
        console.print(f"{escape(str(journal.path))}  one shard, for winnow heads merge", soft_wrap=True)
        return
    kept = f"{journal.path} keeps every coalition; the same command goes on from there with more --samples."
    check_estimate(found, options.keep_noise, kept)
    part = EvaluatedPart(result.left_out, job.halves)
    table = write_table(options.out, found, journal.config, job.origin, part)
    report(console, found, table, job.rule.overlap)
    console.print(theorem_line(found, journal.config, part, options.delta), style="dim")
    files = Table(box=None, pad_edge=False, show_header=False)
    for path, what in (
        (options.out, "per KV head"),
        (journal.path, "every evaluated coalition, to resume from or to delete"),
    ):
        files.add_row(escape(str(path)), what)
    console.print("Written:")
    console.print(files)
