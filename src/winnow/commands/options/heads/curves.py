"""The options of `winnow heads curves`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from winnow.commands.options.shared import Force, JournalPath, MaxNewTokens, ModelOptions, Plugins, PromptOptions
from winnow.commands.options.values import plain_text, result_file

QUESTIONS, LENGTH, MAX_NEW_TOKENS = 24, 1024, 16
"""Counts of generated questions, tokens of their prompts, and tokens of an answer."""


@dataclass(frozen=True, kw_only=True)
class CurvesOptions(ModelOptions, PromptOptions):
    """Measure budget curves for lukv: what every further slot of a head is worth to what follows a text.

    Finished questions are kept in a journal. To resume an interrupted command, repeat it.
    """

    out: Annotated[Path, typer.Option(parser=result_file, metavar="FILE", help="The .safetensors file to write.")]
    method: Annotated[
        str, typer.Option(help="Method that ranks tokens, the one to use the curves with: 'expectedattention'.")
    ] = "snapkv"
    examples: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help='Questions: JSONL with "question" and "document" (a path) or "context" (a text); '
            "or what winnow eval --write wrote.",
            show_default="generated ones",
        ),
    ] = None
    questions: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Number of generated questions.", show_default=str(QUESTIONS)),
    ] = None
    length: Annotated[
        int | None,
        typer.Option(min=256, metavar="N", help="Length of generated prompts, in tokens.", show_default=str(LENGTH)),
    ] = None
    across: Annotated[
        Literal["model", "layer"],
        typer.Option(help="Heads that share slots: all of the model, or those of each layer, with equal layers."),
    ] = "model"
    seed: Annotated[int, typer.Option(min=0, help="Seed of generated texts and questions.")] = 0
    max_new_tokens: MaxNewTokens = MAX_NEW_TOKENS
    license: Annotated[
        str, typer.Option(parser=plain_text, metavar="TEXT", help="License of the curves, stored in the file.")
    ] = ""
    notes: Annotated[str, typer.Option(parser=plain_text, metavar="TEXT", help="Notes, stored in the file.")] = ""
    journal: JournalPath = None
    force: Force = False
    plugins: Plugins = None
