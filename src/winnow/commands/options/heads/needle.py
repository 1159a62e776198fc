"""The options of `winnow heads needle`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from winnow.commands.options.executors import ExecutorOptions
from winnow.commands.options.heads.seeds import seed_number
from winnow.commands.options.shared import (
    JournalPath,
    MaxNewTokens,
    ModelOptions,
    PrefillOptions,
    PromptOptions,
    ScoresFileOptions,
)
from winnow.estimate.needle.settings import CONTEXT_ON_CPU, DEPTHS, DEPTHS_ON_CPU, LENGTHS, MAX_NEW_TOKENS

PerHead = Annotated[
    Literal["kv", "query"],
    typer.Option(help="Write a score per KV head (mean over its query heads) or query head."),
]


@dataclass(frozen=True, kw_only=True)
class NeedleOptions(ModelOptions, PromptOptions, PrefillOptions, ScoresFileOptions, ExecutorOptions):
    """Score every head by how it looks at a needle in a haystack while the model answers.

    Finished runs are kept in a journal; the same command goes on where an interrupted one ended.
    """

    kind: Annotated[Literal["r", "er", "r2"], typer.Option(help="Heads that retrieve (r, er), or reason as well (r2).")]
    examples: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='JSONL file with one {"needle", "question", "answer"} a line, and optionally the "span" of the '
            "needle that counts.",
        ),
    ] = None
    haystack: Annotated[
        str | None, typer.Option(metavar="FILE", help="Text to hide needles in; a generated one without it.")
    ] = None
    repeat: Annotated[bool, typer.Option("--repeat", help="Start the haystack over where it is too short.")] = False
    forms: Annotated[
        Literal["auto", "prose", "tasks"],
        typer.Option(help="Built-in examples and haystack: English prose, or what the bundled model reads."),
    ] = "auto"
    lengths: Annotated[
        str | None,
        typer.Option(metavar="N,N,…", help="Tokens of the prompts.", show_default=f"{LENGTHS} from 0 to --context"),
    ] = None
    depths: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Places of the needle, from the start to the end.",
            show_default=f"{DEPTHS}; {DEPTHS_ON_CPU} on a CPU",
        ),
    ] = None
    context: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="The longest prompt.",
            show_default=f"what the model reads; {CONTEXT_ON_CPU} at most on a CPU",
        ),
    ] = None
    max_new_tokens: MaxNewTokens = MAX_NEW_TOKENS
    seed: Annotated[
        int, typer.Option(parser=seed_number, metavar="N", help="Chooses words and haystack where they are generated.")
    ] = 0
    per: PerHead = "kv"
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Run all prompts even where the model answers none of the first third.")
    ] = False
    journal: JournalPath = None
