"""The options of `winnow demo`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from winnow.commands.options.shared import Force
from winnow.commands.options.values import result_folder


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """See what eviction does: accuracy, memory and pictures, in about two minutes."""

    out: Annotated[
        Path, typer.Option(parser=result_folder, metavar="DIR", help="Folder for the pictures and demo.json.")
    ] = Path("demo-output")
    force: Force = False
    quick: Annotated[bool, typer.Option("--quick", help="A few methods and questions, in seconds.")] = False
