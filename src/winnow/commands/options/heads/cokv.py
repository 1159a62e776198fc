"""The options of `winnow heads cokv`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from winnow.commands.options.executors import ExecutorOptions
from winnow.commands.options.heads.seeds import seed_number
from winnow.commands.options.shared import (
    JournalPath,
    MaxNewTokens,
    MetricName,
    ModelOptions,
    PrefillOptions,
    PromptOptions,
    ScoresFileOptions,
)
from winnow.commands.options.values import byte_count
from winnow.estimate.cokv.settings import DELTA, MAX_NEW_TOKENS, PAIRS, QUESTIONS, WINDOW
from winnow.metrics import DEFAULT_METRIC

MOST_SAMPLES = 1024
"""Samples at most, where only an overlap is asked for."""

CountedHalves = Annotated[
    Literal["both", "first"],
    typer.Option(help="Samples of both parts of a split, or of the first alone as in the paper's Algorithm 1."),
]
KeepMissed = Annotated[
    bool,
    typer.Option("--keep-missed", help="Do not leave out examples that are answered wrong with the whole cache."),
]


@dataclass(frozen=True, kw_only=True)
class CokvOptions(ModelOptions, PromptOptions, PrefillOptions, ScoresFileOptions, ExecutorOptions):
    """Score every KV head by what it adds to coalitions of heads that answer questions together (CoKV).

    Evaluated coalitions are kept in a journal; the same command goes on where an interrupted one ended.
    """

    examples: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help='Validation questions: JSONL with "question", "answer" and "document" (a path) or "context" (a text); '
            "or what winnow eval --write wrote.",
            show_default="generated ones, for the bundled model",
        ),
    ] = None
    metric: MetricName = DEFAULT_METRIC
    questions: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many generated questions.", show_default=str(QUESTIONS))
    ] = None
    sizes: Annotated[
        str,
        typer.Option(help="Coalition sizes: numbers or parts of n, as in n/8,n/4,3n/8,n/2 (which is called eighths)."),
    ] = "n/2"
    samples: Annotated[
        int | None,
        typer.Option(min=1, help="Random splits of the heads in two, at most.", show_default=str(MOST_SAMPLES)),
    ] = None
    overlap: Annotated[
        float | None,
        typer.Option(
            help="Stop when two independent halves of the samples share this much of their top 50%.",
            show_default="2/3, or never where --samples is given",
        ),
    ] = None
    epsilon: Annotated[
        float | None,
        typer.Option(metavar="E", help="In place of --samples: as many as keep scores within E, by Theorem 2."),
    ] = None
    delta: Annotated[float, typer.Option(metavar="D", help="Share of scores that may be further off.")] = DELTA
    halves: CountedHalves = "both"
    balanced: Annotated[
        bool,
        typer.Option("--balanced", help="Draw splits of n/2 in balanced blocks of n - 1: fewer samples do."),
    ] = False
    seed: Annotated[int, typer.Option(parser=seed_number, metavar="N", help="Chooses the splits.")] = 0
    window: Annotated[int, typer.Option(min=0, help="Last prompt tokens that a head outside a coalition keeps.")] = (
        WINDOW
    )
    max_new_tokens: MaxNewTokens = MAX_NEW_TOKENS
    keep_missed: KeepMissed = False
    prompt_memory: Annotated[
        int | None,
        typer.Option(
            parser=byte_count,
            metavar="SIZE",
            help="Prompts that stay in the memory of every worker: 8GiB. Others are kept on disk, or read again.",
            show_default="half of what is free, divided among the workers",
        ),
    ] = None
    batch: Annotated[int, typer.Option(min=1, help="Pairs of coalitions decoded side by side.")] = PAIRS
    journal: JournalPath = None
