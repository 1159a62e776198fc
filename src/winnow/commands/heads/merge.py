"""`winnow heads merge`: the shards of an estimation, put together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from winnow.commands.console import output
from winnow.commands.heads.cokv_table import Origin, check_out, report, write_table
from winnow.commands.inputs import InputError
from winnow.estimate.cokv.ledger import Ledger, read_record
from winnow.estimate.cokv.plan import Sampled
from winnow.estimate.cokv.run import estimate_from
from winnow.estimate.cokv.sampling import PlayerSplits
from winnow.estimate.errors import JournalError
from winnow.estimate.journal import Journal


def merge(
    journals: Annotated[list[Path], typer.Argument(help="Journals of all shards of one winnow heads cokv.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The .safetensors file to write.")],
    licence: Annotated[str, typer.Option(help="Licence of the scores, for the file.")] = "",
    notes: Annotated[str, typer.Option(help="Notes for the file.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Put together what the shards of winnow heads cokv evaluated, and write the table of scores."""
    check_out(out, force)
    opened = [Journal.existing(path) for path in journals]
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
    table = write_table(out, found, config, Origin(config["model"], licence, notes))
    report(output(), found, table, overlap=None)
    output().print(f"{escape(str(out))}  from {len(opened)} journals", soft_wrap=True)


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
