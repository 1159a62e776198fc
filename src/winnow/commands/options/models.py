"""The options of `winnow models`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer


@dataclass(frozen=True, kw_only=True)
class ModelsOptions:
    """List models to start with, by memory, and the models on this machine."""

    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
