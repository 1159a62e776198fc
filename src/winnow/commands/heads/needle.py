"""`winnow heads needle`: head scores from needles in haystacks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import typer
from rich.markup import escape
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from winnow.bundled import is_bundled
from winnow.cache.fingerprint import ModelFingerprint
from winnow.commands.checks import check_apart, check_workers, prepare_output
from winnow.commands.console import messages, output
from winnow.commands.executors import Shard, crew, journal_file
from winnow.commands.heads.needle_progress import watching
from winnow.commands.heads.needle_table import agreement_of, report, told_right, what_was_done
from winnow.commands.inputs import InputError, read_document
from winnow.commands.loading import load, spec_of
from winnow.commands.model_names import dtype_name, model_name
from winnow.commands.options.heads.needle import NeedleOptions
from winnow.commands.progress import resumable, stage
from winnow.commands.prompt_options import style_of
from winnow.estimate.executors.base import Executor
from winnow.estimate.executors.local import LocalExecutor
from winnow.estimate.journal import Journal, fingerprint
from winnow.estimate.needle.effort import Effort
from winnow.estimate.needle.examples import ExampleSource, FileExamples, ProseExamples, TaskExamples
from winnow.estimate.needle.haystack import Haystack, ProseHaystack, TaskHaystack, TextHaystack
from winnow.estimate.needle.plan import NeedlePlan
from winnow.estimate.needle.recipe import NeedleRecipe
from winnow.estimate.needle.recognition import check_weights
from winnow.estimate.needle.run import (
    KnownRuns,
    NeedleShape,
    Outcome,
    check_hopeful,
    known_runs,
    mean_scores,
    needle_shape,
    needle_worker,
    right_halves,
    run_places,
)
from winnow.estimate.needle.settings import (
    NeedleKind,
    Settings,
    default_context,
    default_depths,
    spread_depths,
    spread_lengths,
)
from winnow.estimate.records import NeedleRecord
from winnow.estimate.shape import table_shape
from winnow.estimate.split_half import check_signal
from winnow.heads import HeadScores
from winnow.heads.storage import SUFFIX
from winnow.models import ModelSource, open_model, pick_device


@dataclass(frozen=True)
class Prepared:
    """Everything that was asked for, read and checked; only the weights are missing."""

    options: NeedleOptions
    source: ModelSource
    plan: NeedlePlan
    prose: bool
    """True where built-in examples and haystack are English, False where they are facts of `winnow.tasks`."""
    shard: Shard | None
    journal: Path

    @property
    def numbers(self) -> range:
        """The places to run: all, or those of the shard."""
        index, count = self.shard or (0, 1)
        return range(index, len(self.plan.places), count)

    def origins(self) -> dict[str, str]:
        """The origin of the examples and the haystack: "prose", "tasks" or "file"."""
        given = {"examples_from": self.options.examples, "haystack_from": self.options.haystack}
        built_in = "prose" if self.prose else "tasks"
        return {name: built_in if path is None else "file" for name, path in given.items()}


class Loaded(NamedTuple):
    """Facts of a model whose weights are there."""

    shape: NeedleShape
    heads: int
    """KV heads of every layer."""
    weights: str
    dtype: str
    effort: Effort


def needle(options: NeedleOptions) -> None:
    """Runs the needles, writes the scores and prints how many runs count; for a shard a part of the journal only."""
    check_apart(out=options.out, journal=options.journal)
    prepare_output(options.out, options.force, SUFFIX)
    check_workers(options, options.device_map)
    with stage("Reading the tokenizer, cutting haystacks"):
        prepared = _prepare(options)
    model = load(prepared.source, options)
    loaded = _loaded(model)
    kept = Journal.open(prepared.journal, _config(prepared, loaded), _earlier_config(prepared))
    known = known_runs(prepared.plan, kept, loaded.shape)
    if "weights" not in kept.config:
        check_weights(model, prepared.plan, known, options.chunk_size)
        _tell_recognized(known)
    if options.executor == "local":
        executor: Executor[NeedleRecord] = LocalExecutor(needle_worker(model, prepared.plan, options.chunk_size))
    else:
        # The workers load their own.
        del model
        recipe = NeedleRecipe(spec_of(prepared.source, options), prepared.plan, options.chunk_size)
        executor = crew(options, recipe)
    with executor:
        outcomes = _run(executor, loaded.effort, prepared, known)
    _finish(prepared, loaded, outcomes)


def _finish(prepared: Prepared, loaded: Loaded, outcomes: list[Outcome]) -> None:
    options = prepared.options
    if prepared.shard is not None:
        output().print(f"{escape(str(prepared.journal))}  one shard, for winnow heads merge", soft_wrap=True)
        return
    table = _table(prepared, loaded, outcomes)
    agreement = agreement_of(right_halves(prepared.plan, outcomes), table)
    if not options.keep_noise:
        check_signal(agreement, told_right(outcomes), _remedy(prepared))
    table.save(options.out)
    report(table, prepared.plan.settings.lengths, outcomes, agreement)
    console = output()
    console.print(f"  {escape(str(options.out))}  per {'KV' if options.per == 'kv' else 'query'} head", soft_wrap=True)
    console.print(f"  {escape(str(prepared.journal))}  every run, to resume from or to delete", soft_wrap=True)


def _loaded(model: PreTrainedModel) -> Loaded:
    weights = ModelFingerprint.of(model).weights
    return Loaded(needle_shape(model), table_shape(model).heads, weights, dtype_name(model), Effort.of(model))


def _tell_recognized(known: KnownRuns) -> None:
    if known.outcomes:
        messages().print(
            f"{known.journal.path} was written by an earlier version, which did not note the model's weights. One of "
            "its runs was made again, with the same result; it goes on.",
            style="yellow",
            markup=False,
            soft_wrap=True,
        )


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
    shard = options.part
    prepared = Prepared(options, source, plan, prose, shard, journal_file(options, shard))
    if shard is not None and len(plan.places) < shard[1]:
        raise InputError(f"{len(plan.places)} prompts cannot be divided among {options.shard} shards: use fewer.")
    return prepared


def _lengths(source: ModelSource, options: NeedleOptions) -> tuple[int, ...]:
    """The lengths asked for, ascending; else some that are spread up to the longest that there may be."""
    most = source.context if options.context is None else options.context
    if source.context is not None and most is not None and most > source.context:
        raise InputError(f"--context is {most:,}, but the model reads at most {source.context:,} tokens.")
    if options.lengths is None:
        if most is None:
            raise InputError("The model does not say how many tokens it reads: give --context or --lengths.")
        return spread_lengths(most if options.context is not None else default_context(most, _on_cpu(options)))
    chosen = _read_lengths(options.lengths)
    if most is not None and chosen[-1] > most:
        raise InputError(f"The longest of --lengths is {chosen[-1]:,}, but the model reads at most {most:,} tokens.")
    return chosen


def _on_cpu(options: NeedleOptions) -> bool:
    return pick_device(options.device).type == "cpu"


def _read_lengths(text: str) -> tuple[int, ...]:
    try:
        chosen = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a list of whole numbers, such as 0,1024,2048.", param_hint="--lengths"
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
    """The text of a file, or a generated one: English prose, or sentences of `winnow.tasks`.

    Raises typer.BadParameter where a generated one, which has no end, is to be repeated.
    """
    if path is not None:
        return TextHaystack(read_document(path), path, repeat)
    if repeat:
        raise typer.BadParameter("it repeats the text of --haystack; give one.", param_hint="--repeat")
    return ProseHaystack(seed) if prose else TaskHaystack(seed)


def _config(prepared: Prepared, loaded: Loaded) -> dict[str, Any]:
    """Everything that a run depends on, and what a table needs that is merged without the model."""
    return {
        **_model_config(prepared),
        "weights": loaded.weights,
        **loaded.shape._asdict(),
        "heads": loaded.heads,
        **_asked(prepared, loaded),
    }


def _earlier_config(prepared: Prepared) -> dict[str, Any]:
    """The same as versions wrote it that did not look at the weights."""
    return {**_model_config(prepared), "dtype": prepared.options.dtype, **prepared.plan.config()}


def _model_config(prepared: Prepared) -> dict[str, Any]:
    facts = prepared.source.config.to_dict()
    facts.pop("_name_or_path", None)
    return {"task": "needle", "model": model_name(prepared.source), "model_config": fingerprint(facts)}


def _asked(prepared: Prepared, loaded: Loaded) -> dict[str, Any]:
    """The settings of the table."""
    return {**prepared.plan.asked(), **prepared.origins(), "dtype": loaded.dtype}


def _run(executor: Executor[NeedleRecord], effort: Effort, prepared: Prepared, known: KnownRuns) -> list[Outcome]:
    plan = prepared.plan
    places = [plan.places[number] for number in prepared.numbers]
    total = sum(len(place.cells) for place in places)
    outcomes: list[Outcome] = []
    with (
        watching(plan, places, effort, executor.starting) as watch,
        resumable(known.journal.path, lambda: f"{len(known.journal.records())} of {total} runs"),
    ):
        for outcome in run_places(executor, plan, prepared.numbers, known, watch.prompt):
            outcomes.append(outcome)
            watch.runs(outcomes)
            if not prepared.options.keep_going:
                check_hopeful(plan, outcomes, places)
    return outcomes


def _table(prepared: Prepared, loaded: Loaded, outcomes: list[Outcome]) -> HeadScores:
    options, plan = prepared.options, prepared.plan
    table = mean_scores(
        plan,
        outcomes,
        {**prepared.origins(), "dtype": loaded.dtype},
        model=model_name(prepared.source),
        date=date.today().isoformat(),
        license=options.license or ("Apache-2.0" if is_bundled(prepared.source.name) else ""),
        notes=options.notes
        or what_was_done(len(plan.examples), plan.settings.lengths, len(plan.settings.depths), len(outcomes)),
    )
    return table if options.per == "query" else table.grouped(loaded.heads)


def _remedy(prepared: Prepared) -> str:
    return (
        f"{prepared.journal} keeps every run: the same command with --keep-noise writes the scores all the same. With "
        "another --out, shorter --lengths, more --depths, other --examples or a larger model may do better."
    )
