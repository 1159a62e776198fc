"""The options of `winnow heads verify`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from winnow.commands.options.shared import ModelOptions, PrefillOptions


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(ModelOptions, PrefillOptions):
    """Repeat part of an estimation and check that the file of head scores agrees with it.

    Exit codes: 0 if it agrees, 3 if it does not, 2 if the file does not say how it was made, 1 for any other error.
    """

    file: Annotated[Path, typer.Argument(help="Head scores that winnow heads needle or winnow heads cokv wrote.")]
    share: Annotated[float, typer.Option(help="Share of the work to repeat.")] = 0.1
    seed: Annotated[
        int | None,
        typer.Option(
            help="Seed of the runs or coalitions to repeat.", show_default="0; for CoKV, the file's seed plus one"
        ),
    ] = None
    examples: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The --examples that the scores were made with, unless they were built in."),
    ] = None
    haystack: Annotated[
        str | None, typer.Option(metavar="FILE", help="The --haystack that the scores were made with, if any.")
    ] = None
    repeat: Annotated[bool, typer.Option("--repeat", help="Set it if the scores were made with --repeat.")] = False
    max_new_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of tokens in an answer.", show_default="as the file says"),
    ] = None
