"""`winnow heads needle`: head scores from needles in haystacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape
from rich.table import Table
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from winnow.bundled import is_bundled
from winnow.commands.checks import check_output
from winnow.commands.console import output
from winnow.commands.heads.needle_progress import watching
from winnow.commands.inputs import InputError, read_document
from winnow.commands.model_names import dtype_name, model_name
from winnow.commands.options.heads.needle import NeedleOptions
from winnow.commands.progress import journal_path, resumable, stage
from winnow.commands.prompt_options import style_of
from winnow.estimate.journal import Journal, fingerprint
from winnow.estimate.needle.effort import Effort
from winnow.estimate.needle.examples import ExampleSource, FileExamples, ProseExamples, TaskExamples
from winnow.estimate.needle.haystack import Haystack, ProseHaystack, TaskHaystack, TextHaystack
from winnow.estimate.needle.plan import NeedlePlan
from winnow.estimate.needle.run import Outcome, check_hopeful, mean_scores, right_halves, run_needles
from winnow.estimate.needle.settings import (
    NeedleKind,
    Settings,
    default_context,
    default_depths,
    spread_depths,
    spread_lengths,
)
from winnow.estimate.shape import table_shape
from winnow.estimate.split_half import SplitHalf, check_signal
from winnow.heads import HeadScores
from winnow.heads.storage import SUFFIX
from winnow.models import ModelSource, load_model, open_model, pick_device


@dataclass(frozen=True)
class Prepared:
    """Everything that was asked for, read and checked; only the weights are missing."""

    options: NeedleOptions
    source: ModelSource
    plan: NeedlePlan
    prose: bool
    """True where built-in examples and haystack are English, False where they are facts of `winnow.tasks`."""
    journal: Path

    def origins(self) -> dict[str, str]:
        """The origin of the examples and the haystack: "prose", "tasks" or "file"."""
        given = {"examples_from": self.options.examples, "haystack_from": self.options.haystack}
        built_in = "prose" if self.prose else "tasks"
        return {name: built_in if path is None else "file" for name, path in given.items()}


def needle(options: NeedleOptions) -> None:
    """Runs the needles, writes the scores and prints how many runs count."""
    check_output(options.out, options.force, SUFFIX)
    with stage("Reading the tokenizer, cutting haystacks"):
        prepared = _prepare(options)
    kept = Journal.open(prepared.journal, _config(prepared))
    with stage("Loading the model"):
        loaded = load_model(prepared.source, options.device, options.dtype)
    outcomes = _run(loaded, prepared, kept)
    table = _table(loaded, prepared, outcomes)
    agreement = _agreement(prepared, outcomes, table)
    if not options.keep_noise:
        check_signal(agreement, _told_right(outcomes), _remedy(prepared))
    table.save(options.out)
    _report(prepared, outcomes, agreement)


def _prepare(options: NeedleOptions) -> Prepared:
    source = open_model(options.model)
    prose = options.forms == "prose" or (options.forms == "auto" and reads_prose(source.tokenizer))
    kind = NeedleKind(options.kind)
    lengths, depths = _lengths(source, options), spread_depths(options.depths or default_depths(_on_cpu(options)))
    plan = NeedlePlan(
        source.tokenizer,
        Settings(kind, lengths, depths, options.seed, options.max_new_tokens, style_of(options)),
        example_source(options.examples, prose).examples(kind, options.seed),
        haystack_of(options.haystack, options.repeat, prose, options.seed),
    )
    return Prepared(options, source, plan, prose, options.journal or journal_path(options.out))


def _lengths(source: ModelSource, options: NeedleOptions) -> tuple[int, ...]:
    """The lengths asked for, ascending; else some that are spread up to the longest that there may be."""
    most = source.context if options.context is None else options.context
    if source.context is not None and most is not None and most > source.context:
        raise InputError(f"--context is {most:,}, and the model reads {source.context:,} tokens at most.")
    if options.lengths is None:
        if most is None:
            raise InputError("The model does not say how many tokens it reads: give --context or --lengths.")
        return spread_lengths(most if options.context is not None else default_context(most, _on_cpu(options)))
    chosen = _read_lengths(options.lengths)
    if most is not None and chosen[-1] > most:
        raise InputError(f"The longest of --lengths is {chosen[-1]:,}, and the model reads {most:,} tokens at most.")
    return chosen


def _on_cpu(options: NeedleOptions) -> bool:
    return pick_device(options.device).type == "cpu"


def _read_lengths(text: str) -> tuple[int, ...]:
    try:
        chosen = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} are not whole numbers with commas, as in 0,1024,2048.", param_hint="--lengths"
        ) from None
    if chosen[0] < 0:
        raise typer.BadParameter(f"a length cannot be negative ({chosen[0]}).", param_hint="--lengths")
    return chosen


def reads_prose(tokenizer: PreTrainedTokenizerBase) -> bool:
    """True if the tokenizer knows the words of the built-in English examples."""
    words = " ".join(example.needle for kind in NeedleKind for example in ProseExamples().examples(kind, 0))
    return tokenizer.unk_token_id is None or tokenizer.unk_token_id not in tokenizer(words)["input_ids"]


def example_source(path: Path | None, prose: bool) -> ExampleSource:
    """The examples of a file, or built-in ones: English prose, or facts of `winnow.tasks`."""
    if path is not None:
        return FileExamples(path)
    return ProseExamples() if prose else TaskExamples()


def haystack_of(path: str | None, repeat: bool, prose: bool, seed: int) -> Haystack:
    """The text of a file, or a generated one: English prose, or sentences of `winnow.tasks`."""
    if path is not None:
        return TextHaystack(read_document(path), path, repeat)
    return ProseHaystack(seed) if prose else TaskHaystack(seed)


def _config(prepared: Prepared) -> dict[str, Any]:
    facts = prepared.source.config.to_dict()
    facts.pop("_name_or_path", None)
    return {
        "task": "needle",
        "model": model_name(prepared.source),
        "model_config": fingerprint(facts),
        "dtype": prepared.options.dtype,
        **prepared.plan.config(),
    }


def _run(model: PreTrainedModel, prepared: Prepared, journal: Journal) -> list[Outcome]:
    plan = prepared.plan
    total = len(plan.cells)
    outcomes: list[Outcome] = []
    with watching(plan, Effort.of(model)) as watch:
        # Before anything is said to be kept: a journal that cannot be used keeps nothing.
        runs = run_needles(model, plan, journal, prepared.options.chunk_size, watch.prompt)
        with resumable(journal.path, lambda: f"{len(journal.records())} of {total} runs"):
            for outcome in runs:
                outcomes.append(outcome)
                watch.runs(outcomes)
                if not prepared.options.keep_going:
                    check_hopeful(plan, outcomes)
    return outcomes


def _table(model: PreTrainedModel, prepared: Prepared, outcomes: list[Outcome]) -> HeadScores:
    options, plan = prepared.options, prepared.plan
    table = mean_scores(
        plan,
        outcomes,
        {**prepared.origins(), "dtype": dtype_name(model)},
        model=model_name(prepared.source),
        date=date.today().isoformat(),
        license=options.license or ("Apache-2.0" if is_bundled(prepared.source.name) else ""),
        notes=options.notes or _what_was_done(plan, outcomes),
    )
    return table if options.per == "query" else table.grouped(table_shape(model).heads)


def _agreement(prepared: Prepared, outcomes: list[Outcome], table: HeadScores) -> SplitHalf | None:
    """Rank correlation of two halves of the runs, with the heads of the table; None where there are no halves."""
    halves = right_halves(prepared.plan, outcomes)
    if halves is None:
        return None
    one, other = (half.unflatten(1, (table.shape[1], -1)).mean(dim=2) for half in halves)
    return SplitHalf.of(one, other)


def _told_right(outcomes: Sequence[Outcome]) -> str:
    right = sum(outcome.scores is not None for outcome in outcomes)
    return f"{right} of {len(outcomes)} runs answered right"


def _remedy(prepared: Prepared) -> str:
    return (
        f"{prepared.journal} keeps every run: the same command with --keep-noise writes the scores all the same. With "
        "another --out, shorter --lengths, more --depths, other --examples or a larger model may do better."
    )


def _what_was_done(plan: NeedlePlan, outcomes: list[Outcome]) -> str:
    settings = plan.settings
    lengths = ", ".join(map(str, settings.lengths))
    return (
        f"raw means, not normalized; {len(plan.examples)} examples x lengths {lengths} x {len(settings.depths)} depths "
        f"= {len(outcomes)} runs, of which the right ones count"
    )


def _report(prepared: Prepared, outcomes: list[Outcome], agreement: SplitHalf | None) -> None:
    settings = prepared.plan.settings
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("tokens", "runs", "answered right"):
        table.add_column(column, justify="right")
    for length in settings.lengths:
        ran = [outcome for outcome in outcomes if outcome.cell.length == length]
        table.add_row(f"{length:,}", str(len(ran)), str(sum(outcome.scores is not None for outcome in ran)))
    right = sum(outcome.scores is not None for outcome in outcomes)
    out, per = escape(str(prepared.options.out)), "KV" if prepared.options.per == "kv" else "query"
    console = output()
    console.print(table)
    halves = "there are no two prompts to compare" if agreement is None else f"halves of them agree: {agreement}"
    console.print(
        f"\nheadkv-{settings.kind}: {right} of {len(outcomes)} runs count; {halves}. Written:", soft_wrap=True
    )
    console.print(f"  {out}  per {per} head", soft_wrap=True)
    console.print(f"  {escape(str(prepared.journal))}  every run, to resume from or to delete", soft_wrap=True)
