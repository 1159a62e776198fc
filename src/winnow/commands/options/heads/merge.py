"""The options of `winnow heads merge`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from winnow.commands.options.heads.cokv import CountedHalves, KeepMissed
from winnow.commands.options.heads.needle import PerHead
from winnow.commands.options.shared import ScoresFileOptions


@dataclass(frozen=True, kw_only=True)
class MergeOptions(ScoresFileOptions):
    """Merge the journals of all shards of winnow heads cokv or needle, and write the table of scores."""

    journals: Annotated[list[Path], typer.Argument(help="Journals of all shards of one command.")]
    per: PerHead = "kv"
    keep_missed: KeepMissed = False
    halves: CountedHalves = "both"
