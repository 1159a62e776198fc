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
    typer.Option(help="Write a score per KV head (the mean of its query heads), or per query head."),
]


@dataclass(frozen=True, kw_only=True)
class NeedleOptions(ModelOptions, PromptOptions, PrefillOptions, ScoresFileOptions, ExecutorOptions):
    """Score every head by how much it attends to a needle in a haystack while the model answers.

    Finished runs are kept in a journal. To resume an interrupted command, repeat it.
    """

    kind: Annotated[
        Literal["r", "er", "r2"],
        typer.Option(help="Kind of scores: heads that retrieve (r, er), or that retrieve and reason (r2)."),
    ]
    examples: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='JSONL file with one {"needle", "question", "answer"} per line, and optionally the "span" of the '
            "needle that counts.",
        ),
    ] = None
    haystack: Annotated[
        str | None, typer.Option(metavar="FILE", help="Text to hide needles in; without one, a generated text.")
    ] = None
    repeat: Annotated[bool, typer.Option("--repeat", help="Repeat the haystack if it is too short.")] = False
    forms: Annotated[
        Literal["auto", "prose", "tasks"],
        typer.Option(help="Built-in examples and haystack: English prose, or the bundled model's tasks."),
    ] = "auto"
    lengths: Annotated[
        str | None,
        typer.Option(metavar="N,N,…", help="Prompt lengths, in tokens.", show_default=f"{LENGTHS} from 0 to --context"),
    ] = None
    depths: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Number of places for the needle, from the start of the text to its end.",
            show_default=f"{DEPTHS}; {DEPTHS_ON_CPU} on a CPU",
        ),
    ] = None
    context: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Longest prompt, in tokens.",
            show_default=f"what the model reads; on a CPU at most {CONTEXT_ON_CPU}",
        ),
    ] = None
    max_new_tokens: MaxNewTokens = MAX_NEW_TOKENS
    seed: Annotated[
        int, typer.Option(parser=seed_number, metavar="N", help="Seed of generated needles and haystacks.")
    ] = 0
    per: PerHead = "kv"
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Continue even if the model answers none of the first third right.")
    ] = False
    journal: JournalPath = None
