"""The options of `winnow models`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer


@dataclass(frozen=True, kw_only=True)
class ModelsOptions:
    """List models to begin with, by memory, and those that are on this machine already."""

    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False
