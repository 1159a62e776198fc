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
    """Show what compression does to accuracy and memory, with pictures, in about two minutes."""

    out: Annotated[
        Path, typer.Option(parser=result_folder, metavar="DIR", help="Folder for the pictures and demo.json.")
    ] = Path("demo-output")
    force: Force = False
    quick: Annotated[bool, typer.Option("--quick", help="Use a few methods and questions: takes seconds.")] = False
