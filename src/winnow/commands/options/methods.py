"""The options of `winnow methods`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from winnow.commands.options.shared import Plugins


@dataclass(frozen=True, kw_only=True)
class MethodsOptions:
    """List the compression methods, and the parts to combine with them."""

    name: Annotated[str | None, typer.Argument(help="Method or part to show, with all its parameters.")] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
    plugins: Plugins = None
