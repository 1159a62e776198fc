"""The options of `winnow heads kvzip`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from winnow.commands.options.shared import ModelOptions, PrefillOptions, PromptOptions, ScoresFileOptions

TOKENS = 2048


@dataclass(frozen=True, kw_only=True)
class KVzipOptions(ModelOptions, PromptOptions, PrefillOptions, ScoresFileOptions):
    """Score every KV head by what it attends to while the model repeats a text, in about a minute.

    Nothing is written before the end.
    """

    texts: Annotated[
        list[str] | None,
        typer.Option(
            "--text",
            metavar="FILE",
            help="Text to repeat; without one, a generated text. May be given several times: of a head's scores, the "
            "highest counts.",
        ),
    ] = None
    tokens: Annotated[
        int,
        typer.Option(
            min=16, metavar="N", help="Maximum tokens of each prompt; fewer if the model cannot read them twice."
        ),
    ] = TOKENS
    plus: Annotated[bool, typer.Option("--plus", help="KVzip+: weigh attention by what values do to the output.")] = (
        False
    )
    seed: Annotated[int, typer.Option(help="Seed of the generated text.")] = 0
