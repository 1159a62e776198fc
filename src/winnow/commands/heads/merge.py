"""`winnow heads merge`: the shards of an estimation, put together."""

from __future__ import annotations

from typing import Any

from rich.markup import escape

from winnow.commands.checks import check_output
from winnow.commands.console import output
from winnow.commands.heads.cokv_table import Origin, report, write_table
from winnow.commands.inputs import InputError
from winnow.commands.options.heads.merge import MergeOptions
from winnow.estimate.cokv.ledger import Ledger, read_record
from winnow.estimate.cokv.plan import Sampled
from winnow.estimate.cokv.run import estimate_from
from winnow.estimate.cokv.sampling import PlayerSplits
from winnow.estimate.errors import JournalError
from winnow.estimate.journal import Journal
from winnow.heads.storage import SUFFIX


def merge(options: MergeOptions) -> None:
    """Writes the table of scores that the journals of all shards give together."""
    check_output(options.out, options.force, SUFFIX)
    opened = [Journal.existing(path) for path in options.journals]
    config = _common_config(opened)
    ledger = Ledger(config["examples"])
    for journal in opened:
        ledger.merge(map(read_record, journal.records()))
    batches = ledger.complete_batches()
    if not batches:
        raise InputError(_what_is_missing(ledger))
    splits = PlayerSplits(config["players"], tuple(config["sizes"]), config["seed"], config["balanced"])
    plan = Sampled(splits, config["pairs"])
    found = estimate_from(plan, ledger, batches)
    table = write_table(options.out, found, config, Origin(config["model"], options.license, options.notes))
    report(output(), found, table, overlap=None)
    output().print(f"{escape(str(options.out))}  from {len(opened)} journals", soft_wrap=True)


def _common_config(opened: list[Journal]) -> dict[str, Any]:
    first = opened[0]
    if first.config.get("task") != "cokv":
        raise InputError(f"{first.path} is the journal of another estimation; winnow heads cokv writes what is merged.")
    for other in opened[1:]:
        differing = [name for name in first.config if first.config[name] != other.config.get(name)]
        if differing:
            raise JournalError(
                f"{first.path} and {other.path} differ in {', '.join(differing)}: shards must be of one command."
            )
    return first.config


def _what_is_missing(ledger: Ledger) -> str:
    missing = ledger.missing_examples()
    return (
        f"{len(missing)} of {ledger.examples} validation examples were not evaluated by any of these shards (the first "
        f"is number {missing[0] + 1}): give the journals of all shards, and run those that did not finish again."
    )
