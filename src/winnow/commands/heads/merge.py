"""`winnow heads merge`: the shards of an estimation, put together."""

from __future__ import annotations

from collections.abc import Sequence

import typer
from rich.markup import escape

from winnow.commands.checks import prepare_output
from winnow.commands.console import output
from winnow.commands.heads.cokv_progress import tell_screening
from winnow.commands.heads.cokv_table import EvaluatedPart, Origin, check_estimate, report, write_table
from winnow.commands.heads.merge_needles import merge_needles
from winnow.commands.inputs import InputError
from winnow.commands.options.heads.merge import MergeOptions
from winnow.estimate.cokv.config import coalition_config
from winnow.estimate.cokv.ledger import Ledger, evaluated
from winnow.estimate.cokv.run import estimate_from
from winnow.estimate.cokv.screening import leave_out_missed, screened
from winnow.estimate.errors import JournalError, ShapleyError
from winnow.estimate.executors.base import Done
from winnow.estimate.journal import Journal
from winnow.heads.storage import SUFFIX


def merge(options: MergeOptions) -> None:
    """Writes the table of scores that the journals of all shards give together."""
    prepare_output(options.out, options.force, SUFFIX)
    opened = [Journal.existing(path) for path in options.journals]
    check_one_command(opened)
    if opened[0].config.get("task") == "needle":
        _refuse("--halves", options.halves != "both", "is for journals of winnow heads cokv.")
        _refuse("--keep-missed", options.keep_missed, "is for journals of winnow heads cokv.")
        merge_needles(opened, options)
    else:
        _refuse("--per", options.per != "kv", "is for journals of winnow heads needle: CoKV scores are per KV head.")
        _merge_coalitions(opened, options)


def _refuse(option: str, given: bool, reason: str) -> None:
    if given:
        raise typer.BadParameter(reason, param_hint=option)


def _merge_coalitions(opened: Sequence[Journal], options: MergeOptions) -> None:
    config = coalition_config(opened[0])
    plan = config.plan()
    ledger = Ledger(config.examples)
    for journal in opened:
        _take_over(ledger, journal, evaluated(journal, plan, config.examples))
    screening = screened(ledger, range(config.examples))
    if not options.keep_missed:
        leave_out_missed(ledger, screening)
        tell_screening(screening, config.examples, keep_missed=False)
    batches = ledger.complete_batches()
    if not batches:
        raise InputError(_what_is_missing(ledger))
    found = estimate_from(plan, ledger, batches, options.halves)
    origin = Origin(config.model, options.license, options.notes)
    check_estimate(found, options.keep_noise, "Let all shards go on with more --samples, and merge again.")
    part = EvaluatedPart(() if options.keep_missed else screening.missed, options.halves)
    table = write_table(options.out, found, opened[0].config, origin, part)
    report(output(), found, table, overlap=None)
    output().print(f"{escape(str(options.out))}  from {len(opened)} journals", soft_wrap=True)


def _take_over(ledger: Ledger, journal: Journal, found: list[Done[list[float]]]) -> None:
    try:
        ledger.merge(found)
    except ShapleyError as problem:
        raise JournalError(f"{journal.path}: {problem}") from None


def check_one_command(opened: Sequence[Journal]) -> None:
    """Raises JournalError where journals are of different configurations."""
    first = opened[0]
    for other in opened[1:]:
        names = first.config.keys() | other.config.keys()
        differing = sorted(name for name in names if first.config.get(name) != other.config.get(name))
        if differing:
            raise JournalError(
                f"{first.path} and {other.path} differ in {', '.join(differing)}: give the shards of one command."
            )


def _what_is_missing(ledger: Ledger) -> str:
    missing = ledger.missing_examples()
    return (
        f"{len(missing)} of {ledger.examples} validation examples were not evaluated by any of these shards (the first "
        f"is number {missing[0] + 1}): give the journals of all shards, and run those that did not finish again."
    )
