"""`winnow heads cokv`: sliced Shapley values of KV heads, from questions answered by coalitions of heads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from winnow.bundled import MODEL_PATH
from winnow.cache.fingerprint import ModelFingerprint
from winnow.commands.batch_file import read_batch
from winnow.commands.console import messages, output
from winnow.commands.heads.cokv_table import Origin, check_out, report, write_table
from winnow.commands.inputs import InputError
from winnow.commands.model_names import model_name
from winnow.commands.options import (
    BUNDLED_MODEL,
    AnswerTokensOption,
    ChunkOption,
    Device,
    DeviceOption,
    Dtype,
    DtypeOption,
    LicenceOption,
    ModelOption,
    NotesOption,
)
from winnow.estimate.cokv.estimator import Estimate
from winnow.estimate.cokv.examples import ValidationExample, check_examples, generated_examples
from winnow.estimate.cokv.ledger import Ledger
from winnow.estimate.cokv.plan import Sampled
from winnow.estimate.cokv.recipe import CoalitionRecipe
from winnow.estimate.cokv.run import ItemProgress, check_shards, run_sampled, run_shard
from winnow.estimate.cokv.sampling import PlayerSplits, default_sizes
from winnow.estimate.cokv.settings import MAX_NEW_TOKENS, OVERLAP, PAIRS, QUESTION_TOKENS, WINDOW, StopRule, Terms
from winnow.estimate.errors import ExecutorError, JournalError
from winnow.estimate.executors.base import Executor
from winnow.estimate.executors.local import LocalExecutor
from winnow.estimate.executors.processes import ProcessExecutor
from winnow.estimate.executors.ray_cluster import RayExecutor
from winnow.estimate.journal import Journal, fingerprint
from winnow.estimate.shape import TableShape, table_shape
from winnow.evaluate.prompts import encode_prompt
from winnow.models import ModelSource, load_model, open_model, pick_device

MOST_SAMPLES = 1024
"""Where only an overlap is asked for."""


class Where(StrEnum):
    """Who evaluates coalitions."""

    LOCAL = "local"
    PROCESSES = "processes"
    RAY = "ray"


@dataclass(frozen=True)
class Job:
    """Everything that was asked for, checked; nothing was evaluated yet."""

    recipe: CoalitionRecipe
    plan: Sampled
    players: TableShape
    rule: StopRule
    shard: tuple[int, int] | None
    origin: Origin
    tokens: int | None
    """Of the documents of generated questions."""


def cokv(
    out: Annotated[Path, typer.Option(metavar="FILE", help="The .safetensors file to write.")],
    model: ModelOption = BUNDLED_MODEL,
    examples: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help='Validation questions: JSONL with "question", "answer" and "document" (a path) or "context" (a text).',
            show_default="generated ones, for the bundled model",
        ),
    ] = None,
    questions: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many generated questions.", show_default="24")
    ] = None,
    sizes: Annotated[
        str,
        typer.Option(help="Coalition sizes: numbers or parts of n, as in n/8,n/4,3n/8,n/2 (which is called eighths)."),
    ] = "n/2",
    samples: Annotated[
        int | None,
        typer.Option(min=1, help="Random splits of the heads in two, at most.", show_default=str(MOST_SAMPLES)),
    ] = None,
    overlap: Annotated[
        float | None,
        typer.Option(
            help="Stop when two independent halves of the samples share this much of their top 50%.",
            show_default="2/3, or never where --samples is given",
        ),
    ] = None,
    balanced: Annotated[
        bool,
        typer.Option("--balanced", help="Draw splits of n/2 in balanced blocks of n - 1: fewer samples do."),
    ] = False,
    seed: Annotated[int, typer.Option(help="Chooses the splits.")] = 0,
    window: Annotated[
        int, typer.Option(min=0, help="Last prompt tokens that a head outside a coalition keeps.")
    ] = WINDOW,
    max_new_tokens: AnswerTokensOption = MAX_NEW_TOKENS,
    executor: Annotated[
        Where, typer.Option(help="Who evaluates: this process, several, or a Ray cluster.")
    ] = Where.LOCAL,
    workers: Annotated[int, typer.Option(min=1, help="Processes or Ray actors.")] = 2,
    shard: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Evaluate every N-th example only, from the I-th; then winnow heads merge."),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Pairs of coalitions decoded side by side.")] = PAIRS,
    journal: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where evaluated coalitions are kept.", show_default="beside --out"),
    ] = None,
    licence: LicenceOption = "",
    notes: NotesOption = "",
    device: DeviceOption = Device.AUTO,
    dtype: DtypeOption = Dtype.AUTO,
    chunk: ChunkOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Score every KV head by what it adds to coalitions of heads that answer questions together (CoKV).

    Evaluated coalitions are kept in a journal; the same command goes on where an interrupted one ended.
    """
    check_out(out, force)
    part = _shard(shard)
    validation = _examples(model, examples, questions)
    check_shards(len(validation), part[1] if part else 1)
    source = open_model(model)
    _check_lengths(source, validation, max_new_tokens)
    with messages().status("Loading the model"):
        loaded = load_model(source, device, dtype)
    players = table_shape(loaded)
    splits = PlayerSplits(players.total, _sizes(sizes, players.total), seed, balanced)
    plan = Sampled(splits, -(-batch // splits.cycle) * splits.cycle)
    recipe = CoalitionRecipe(
        source.name, str(device), str(dtype), players.heads, validation, Terms(window, max_new_tokens, chunk), plan
    )
    origin = Origin(model_name(source), licence, notes)
    job = Job(
        recipe, plan, players, _rule(samples, overlap), part, origin, QUESTION_TOKENS if examples is None else None
    )
    kept = Journal.open(journal or _journal_path(out, part), _config(job, ModelFingerprint.of(loaded)))
    if executor is Where.LOCAL:
        evaluating: Executor = LocalExecutor(recipe.worker(loaded, source.tokenizer))
    else:
        # The workers load their own.
        del loaded
        evaluating = _crew(executor, recipe, workers)
    with evaluating:
        found = _run(job, evaluating, Ledger(len(validation), kept))
    _finish(job, found, kept, out)


def _crew(where: Where, recipe: CoalitionRecipe, workers: int) -> Executor:
    if where is Where.PROCESSES:
        return ProcessExecutor(recipe, workers)
    return RayExecutor(recipe, workers, gpus=1 if pick_device(recipe.device).type == "cuda" else 0)


def _shard(text: str | None) -> tuple[int, int] | None:
    """ "2/4" -> (1, 4)"""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise typer.BadParameter(f"{text!r} is not of the form I/N, as in 2/4.", param_hint="--shard")
    return int(match[1]) - 1, int(match[2])


def _examples(model: str, path: str | None, count: int | None) -> tuple[ValidationExample, ...]:
    if path is None:
        if Path(model).expanduser().resolve() != MODEL_PATH:
            raise InputError("The generated questions are for the bundled model: give --examples for another one.")
        return generated_examples() if count is None else generated_examples(count)
    if count is not None:
        raise typer.BadParameter("counts generated questions, and --examples has its own.", param_hint="--questions")
    if path != "-" and Path(path).is_file() and not Path(path).read_bytes().strip():
        raise InputError(f"{path} has no validation questions; give one JSON object a line.")
    asked = read_batch(path, None)
    missing = next((each for each in asked if each.answer is None), None)
    if missing is not None:
        raise InputError(f'{missing.origin}: no answer, so nothing tells whether a coalition is right; add "answer".')
    found = tuple(ValidationExample(each.document, each.question, each.answer or "") for each in asked)
    check_examples(found)
    return found


def _check_lengths(source: ModelSource, examples: Sequence[ValidationExample], answer: int) -> None:
    """Before any weight is read."""
    for number, example in enumerate(examples, start=1):
        length = encode_prompt(source.tokenizer, example.document, example.question).shape[1]
        if source.context is not None and length + answer > source.context:
            raise InputError(
                f"The prompt of validation example {number} has {length:,} tokens; with an answer of up to {answer:,} "
                f"that is more than the {source.context:,} that the model reads: shorten its document."
            )


def _sizes(text: str, players: int) -> tuple[int, ...]:
    """ "n/8, 3n/8, 100" -> (n // 8, 3n // 8, 100)"""
    if text.strip() == "eighths":
        return default_sizes(players)
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"(?P<times>\d*)n(/(?P<by>[1-9]\d*))?|(?P<size>\d+)", part.strip())
        if not match:
            raise typer.BadParameter(f"{part!r} is no size: write 128, n/2 or 3n/8.", param_hint="--sizes")
        size = match["size"] or int(match["times"] or 1) * players // int(match["by"] or 1)
        found.append(int(size))
    return tuple(sorted(set(found)))


def _rule(samples: int | None, overlap: float | None) -> StopRule:
    if samples is None:
        return StopRule(MOST_SAMPLES, OVERLAP if overlap is None else overlap)
    return StopRule(samples, overlap)


def _journal_path(out: Path, shard: tuple[int, int] | None) -> Path:
    part = "" if shard is None else f".shard-{shard[0] + 1}-of-{shard[1]}"
    return out.with_name(f"{out.stem}{part}.journal.jsonl")


def _config(job: Job, loaded: ModelFingerprint) -> dict[str, Any]:
    """All that a utility depends on; who evaluates it, and how many are wanted, changes none."""
    return {
        "task": "cokv",
        "model": job.origin.model,
        "weights": loaded.weights,
        "dtype": loaded.dtype,
        "layers": job.players.layers,
        "heads": job.players.heads,
        "examples": len(job.recipe.examples),
        "examples_hash": fingerprint(job.recipe.examples),
        "question_tokens": job.tokens,
        **job.recipe.terms.config(),
        **job.plan.config(),
    }


def _run(job: Job, executor: Executor, ledger: Ledger) -> Estimate | None:
    """None for a shard, which has a part of every utility only."""
    try:
        with _progress(ledger) as watch:
            if job.shard is not None:
                run_shard(job.plan, job.rule.samples, job.shard, executor, ledger, watch)
                return None
            return run_sampled(job.plan, job.rule, executor, ledger, watch)
    except (KeyboardInterrupt, JournalError, ExecutorError):
        where = ledger.journal.path if ledger.journal else ""
        messages().print(
            f"{len(ledger)} evaluated batches are kept in {where}; the same command goes on from there.",
            markup=False,
            soft_wrap=True,
        )
        raise


@contextmanager
def _progress(ledger: Ledger) -> Iterator[ItemProgress]:
    columns = (
        TextColumn("Coalitions{task.fields[overlap]}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=messages(), transient=True) as progress:
        bar = progress.add_task("", total=None, completed=len(ledger), overlap="")

        def watch(done: int, total: int, found: Estimate | None) -> None:
            told = "" if found is None else f", halves agree to {100 * found.overlap:.0f}%"
            progress.update(bar, completed=done, total=total, overlap=told)

        yield watch


def _finish(job: Job, found: Estimate | None, journal: Journal, out: Path) -> None:
    console = output()
    if found is None:
        console.print(f"{escape(str(journal.path))}  one shard, for winnow heads merge", soft_wrap=True)
        return
    table = write_table(out, found, journal.config, job.origin)
    report(console, found, table, job.rule.overlap)
    files = Table(box=None, pad_edge=False, show_header=False)
    for path, what in ((out, "per KV head"), (journal.path, "every evaluated coalition, to resume from or to delete")):
        files.add_row(escape(str(path)), what)
    console.print("Written:")
    console.print(files)
