"""`winnow heads needle`: head scores from needles in haystacks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from winnow.bundled import is_bundled
from winnow.commands.console import messages, output
from winnow.commands.inputs import InputError, read_document
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
from winnow.estimate.journal import Journal, fingerprint
from winnow.estimate.needle.examples import ExampleSource, FileExamples, ProseExamples, TaskExamples
from winnow.estimate.needle.haystack import Haystack, ProseHaystack, TaskHaystack, TextHaystack
from winnow.estimate.needle.plan import NeedlePlan
from winnow.estimate.needle.run import Outcome, mean_scores, run_needles
from winnow.estimate.needle.settings import DEPTHS, MAX_NEW_TOKENS, NeedleKind, Settings, spread_depths, spread_lengths
from winnow.estimate.shape import table_shape
from winnow.heads.storage import SUFFIX
from winnow.models import ModelSource, load_model, open_model


class Forms(StrEnum):
    """What the examples and the haystack are written in."""

    AUTO = "auto"
    PROSE = "prose"
    TASKS = "tasks"


class Per(StrEnum):
    """What a column of the written table is."""

    KV = "kv"
    QUERY = "query"


@dataclass(frozen=True)
class Target:
    """What is written, and where."""

    out: Path
    journal: Path
    per: Per
    licence: str
    notes: str
    asked: dict[str, str]
    """What the examples and the haystack are: "prose", "tasks" or "file"."""


def needle(
    kind: Annotated[NeedleKind, typer.Option(help="Heads that retrieve (r, er), or reason as well (r2).")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The .safetensors file to write.")],
    model: ModelOption = BUNDLED_MODEL,
    examples: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='JSONL file with one {"needle", "question", "answer"} a line, and optionally the "span" of the '
            "needle that counts.",
        ),
    ] = None,
    haystack: Annotated[
        str | None, typer.Option(metavar="FILE", help="Text to hide needles in; a generated one without it.")
    ] = None,
    repeat: Annotated[bool, typer.Option("--repeat", help="Start the haystack over where it is too short.")] = False,
    forms: Annotated[
        Forms, typer.Option(help="Built-in examples and haystack: English prose, or what the bundled model reads.")
    ] = Forms.AUTO,
    lengths: Annotated[
        str | None,
        typer.Option(metavar="N,N,…", help="Tokens of the prompts.", show_default="5 from 0 to the context"),
    ] = None,
    depths: Annotated[int, typer.Option(min=1, help="Places of the needle, from the start to the end.")] = DEPTHS,
    context: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="The longest prompt.", show_default="what the model reads")
    ] = None,
    max_new_tokens: AnswerTokensOption = MAX_NEW_TOKENS,
    seed: Annotated[int, typer.Option(help="Chooses words and haystack where they are generated.")] = 0,
    per: Annotated[
        Per, typer.Option(help="Write a score per KV head (mean over its query heads) or query head.")
    ] = Per.KV,
    journal: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where finished runs are kept.", show_default="beside --out"),
    ] = None,
    licence: LicenceOption = "",
    notes: NotesOption = "",
    device: DeviceOption = Device.AUTO,
    dtype: DtypeOption = Dtype.AUTO,
    chunk: ChunkOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Score every head by how it looks at a needle in a haystack while the model answers.

    Finished runs are kept in a journal; the same command goes on where an interrupted one ended.
    """
    _check_out(out, force)
    with messages().status("Reading the tokenizer, cutting haystacks"):
        source = open_model(model)
        plan = NeedlePlan(
            source.tokenizer,
            Settings(kind, _lengths(source, lengths, context), spread_depths(depths), seed, max_new_tokens),
            _examples(source.tokenizer, examples, forms).examples(kind, seed),
            _haystack(source.tokenizer, haystack, repeat, forms, seed),
        )
    asked = _sources(source.tokenizer, examples, haystack, forms)
    target = Target(out, journal or out.with_suffix(".journal.jsonl"), per, licence, notes, asked)
    kept = Journal.open(target.journal, _config(source, plan, dtype))
    with messages().status("Loading the model"):
        loaded = load_model(source, device, dtype)
    outcomes = _run(loaded, plan, kept, chunk)
    _write(loaded, source, plan, outcomes, target)
    _report(plan, outcomes, target)


def _check_out(out: Path, force: bool) -> None:
    if out.suffix != SUFFIX:
        raise InputError(f"{out} is not a name for a {SUFFIX} file: call it {out.with_suffix(SUFFIX).name}.")
    if out.is_dir():
        raise InputError(f"{out} is a directory; name a file in it.")
    if out.exists() and not force:
        raise InputError(f"{out} exists; give another name, or --force to replace it.")


def _lengths(source: ModelSource, lengths: str | None, context: int | None) -> tuple[int, ...]:
    most = source.context if context is None else context
    if source.context is not None and most is not None and most > source.context:
        raise InputError(f"--context is {most:,}, and the model reads {source.context:,} tokens at most.")
    if lengths is None:
        if most is None:
            raise InputError("The model does not say how many tokens it reads: give --context or --lengths.")
        return spread_lengths(most)
    try:
        chosen = tuple(sorted({int(part) for part in lengths.split(",")}))
    except ValueError:
        raise typer.BadParameter(
            f"{lengths!r} are not whole numbers with commas, as in 0,1024,2048.", param_hint="--lengths"
        ) from None
    if chosen[0] < 0:
        raise typer.BadParameter(f"a length cannot be negative ({chosen[0]}).", param_hint="--lengths")
    if most is not None and chosen[-1] > most:
        raise InputError(f"The longest of --lengths is {chosen[-1]:,}, and the model reads {most:,} tokens at most.")
    return chosen


def reads_prose(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the tokenizer knows the words of the built-in English examples."""
    words = " ".join(example.needle for kind in NeedleKind for example in ProseExamples().examples(kind, 0))
    return tokenizer.unk_token_id is None or tokenizer.unk_token_id not in tokenizer(words)["input_ids"]


def _as_prose(tokenizer: PreTrainedTokenizerBase, forms: Forms) -> bool:
    return forms is Forms.PROSE or (forms is Forms.AUTO and reads_prose(tokenizer))


def _examples(tokenizer: PreTrainedTokenizerBase, path: Path | None, forms: Forms) -> ExampleSource:
    if path is not None:
        return FileExamples(path)
    return ProseExamples() if _as_prose(tokenizer, forms) else TaskExamples()


def _haystack(tokenizer: PreTrainedTokenizerBase, path: str | None, repeat: bool, forms: Forms, seed: int) -> Haystack:
    if path is not None:
        return TextHaystack(read_document(path), path, repeat)
    return ProseHaystack(seed) if _as_prose(tokenizer, forms) else TaskHaystack(seed)


def _sources(
    tokenizer: PreTrainedTokenizerBase, examples: Path | None, haystack: str | None, forms: Forms
) -> dict[str, str]:
    built_in = str(Forms.PROSE if _as_prose(tokenizer, forms) else Forms.TASKS)
    given = {"examples_from": examples, "haystack_from": haystack}
    return {name: built_in if path is None else "file" for name, path in given.items()}


def _config(source: ModelSource, plan: NeedlePlan, dtype: Dtype) -> dict[str, Any]:
    facts = source.config.to_dict()
    facts.pop("_name_or_path", None)
    return {
        "task": "needle",
        "model": model_name(source),
        "model_config": fingerprint(facts),
        "dtype": str(dtype),
        **plan.config(),
    }


def _run(model: PreTrainedModel, plan: NeedlePlan, journal: Journal, chunk: int | None) -> list[Outcome]:
    columns = (
        TextColumn("Needles ({task.fields[kind]}), {task.fields[right]} answered right"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    outcomes: list[Outcome] = []
    total = len(plan.cells)
    try:
        with Progress(*columns, console=messages(), transient=True) as progress:
            bar = progress.add_task("", total=total, kind=plan.settings.kind, right=0)
            for outcome in run_needles(model, plan, journal, chunk):
                outcomes.append(outcome)
                right = sum(one.scores is not None for one in outcomes)
                progress.update(bar, advance=1, right=right)
    except KeyboardInterrupt:
        done = len(journal.records())
        messages().print(
            f"{done} of {total} runs are kept in {journal.path}; the same command goes on from there.",
            markup=False,
            soft_wrap=True,
        )
        raise
    return outcomes


def _write(
    model: PreTrainedModel, source: ModelSource, plan: NeedlePlan, outcomes: list[Outcome], target: Target
) -> None:
    own = is_bundled(source.name)
    table = mean_scores(
        plan,
        outcomes,
        {**target.asked, "dtype": str(model.dtype).removeprefix("torch.")},
        model=model_name(source),
        date=date.today().isoformat(),
        license=target.licence or ("Apache-2.0" if own else ""),
        notes=target.notes or _what_was_done(plan, outcomes),
    )
    (table if target.per is Per.QUERY else table.grouped(table_shape(model).heads)).save(target.out)


def _what_was_done(plan: NeedlePlan, outcomes: list[Outcome]) -> str:
    settings = plan.settings
    lengths = ", ".join(map(str, settings.lengths))
    return (
        f"raw means, not normalized; {len(plan.examples)} examples x lengths {lengths} x {len(settings.depths)} depths "
        f"= {len(outcomes)} runs, of which the right ones count"
    )


def _report(plan: NeedlePlan, outcomes: list[Outcome], target: Target) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("tokens", "runs", "answered right"):
        table.add_column(column, justify="right")
    for length in plan.settings.lengths:
        ran = [outcome for outcome in outcomes if outcome.cell.length == length]
        table.add_row(f"{length:,}", str(len(ran)), str(sum(outcome.scores is not None for outcome in ran)))
    right = sum(outcome.scores is not None for outcome in outcomes)
    console = output()
    console.print(table)
    console.print(f"\nheadkv-{plan.settings.kind}: {right} of {len(outcomes)} runs count. Written:")
    console.print(f"  {escape(str(target.out))}  per {'KV' if target.per is Per.KV else 'query'} head", soft_wrap=True)
    console.print(f"  {escape(str(target.journal))}  every run, to resume from or to delete", soft_wrap=True)
