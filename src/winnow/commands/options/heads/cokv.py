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
    typer.Option(help="Count both parts of a split as samples, or only the first, as in the paper's Algorithm 1."),
]
KeepMissed = Annotated[
    bool,
    typer.Option("--keep-missed", help="Keep examples that are answered wrong with the full cache."),
]


@dataclass(frozen=True, kw_only=True)
class CokvOptions(ModelOptions, PromptOptions, PrefillOptions, ScoresFileOptions, ExecutorOptions):
    """Score every KV head by what it adds to coalitions of heads that answer questions together (CoKV).

    Finished evaluations are kept in a journal. To resume an interrupted command, repeat it.
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
        int | None,
        typer.Option(min=1, metavar="N", help="Number of generated questions.", show_default=str(QUESTIONS)),
    ] = None
    sizes: Annotated[
        str,
        typer.Option(help="Coalition sizes: numbers, or fractions of the n heads; eighths is n/8,n/4,3n/8,n/2."),
    ] = "n/2"
    samples: Annotated[
        int | None,
        typer.Option(
            min=1, help="Maximum number of random splits of the heads in two.", show_default=str(MOST_SAMPLES)
        ),
    ] = None
    overlap: Annotated[
        float | None,
        typer.Option(
            help="Stop when two independent halves of the samples share this much of their top 50%.",
            show_default="2/3; with --samples, never",
        ),
    ] = None
    epsilon: Annotated[
        float | None,
        typer.Option(
            metavar="E", help="Instead of --samples: take as many as keep scores within E, by the paper's Theorem 2."
        ),
    ] = None
    delta: Annotated[
        float, typer.Option(metavar="D", help="With --epsilon: share of scores that may be further off than E.")
    ] = DELTA
    halves: CountedHalves = "both"
    balanced: Annotated[
        bool,
        typer.Option("--balanced", help="Draw splits of n/2 in balanced blocks of n - 1: fewer samples are needed."),
    ] = False
    seed: Annotated[int, typer.Option(parser=seed_number, metavar="N", help="Seed of the splits.")] = 0
    window: Annotated[
        int, typer.Option(min=0, help="Number of last prompt tokens that a head outside a coalition keeps.")
    ] = WINDOW
    max_new_tokens: MaxNewTokens = MAX_NEW_TOKENS
    keep_missed: KeepMissed = False
    prompt_memory: Annotated[
        int | None,
        typer.Option(
            parser=byte_count,
            metavar="SIZE",
            help="Memory of every worker for prompts: 8GiB. Prompts beyond it are kept on disk, or read again.",
            show_default="half of the free memory, divided among the workers",
        ),
    ] = None
    batch: Annotated[int, typer.Option(min=1, help="Number of pairs of coalitions to decode side by side.")] = PAIRS
    journal: JournalPath = None
