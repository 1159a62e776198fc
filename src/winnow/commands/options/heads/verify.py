"""The options of `winnow heads verify`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from winnow.commands.options.shared import ModelOptions, PrefillOptions


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(ModelOptions, PrefillOptions):
    """Repeat a part of an estimation and say if the file fits it.

    Ends with 0 if it does, 3 if it does not, 2 where the file does not say how it was made, 1 after any other error.
    """

    file: Annotated[Path, typer.Argument(help="Head scores that winnow heads needle or winnow heads cokv wrote.")]
    share: Annotated[float, typer.Option(help="How much of the work to do again.")] = 0.1
    seed: Annotated[
        int | None,
        typer.Option(
            help="Chooses the runs, or draws the coalitions.", show_default="0, or for CoKV the file's and one more"
        ),
    ] = None
    examples: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The --examples that the scores come from, if they were not built in."),
    ] = None
    haystack: Annotated[
        str | None, typer.Option(metavar="FILE", help="The --haystack that they come from, if there was one.")
    ] = None
    repeat: Annotated[bool, typer.Option("--repeat", help="As the haystack was used.")] = False
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of an answer.", show_default="as the file says")
    ] = None
