"""The options of `winnow heads tune`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from winnow.commands.options.shared import Force, JournalPath, MaxNewTokens, MetricName, ModelOptions, PromptOptions
from winnow.commands.options.values import result_file
from winnow.estimate.tune.settings import MAX_NEW_TOKENS, SHARE, SHARE_OF_VALIDATION
from winnow.metrics import DEFAULT_METRIC

BUDGETS = "32,64,128,256"


@dataclass(frozen=True, kw_only=True)
class TuneOptions(ModelOptions, PromptOptions):
    """Choose beta or alpha on validation questions, and confirm the choice on questions about other documents.

    Answers are kept in a journal, document by document. To resume an interrupted command, repeat it.
    """

    method: Annotated[
        Literal["headkv-r", "headkv-er", "headkv-r2", "cokv"],
        typer.Option(help="Method whose beta (HeadKV) or alpha (CoKV) to choose."),
    ]
    out: Annotated[Path, typer.Option(parser=result_file, metavar="FILE", help="The .json file to write.")]
    scores: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Head scores of the model.", show_default="those shipped with it"),
    ] = None
    budgets: Annotated[
        str, typer.Option(metavar="N,N,…", help="Budgets to average accuracy over; the best mean decides.")
    ] = BUDGETS
    values: Annotated[
        str | None, typer.Option(metavar="X,X,…", help="Values to try.", show_default="those of the paper")
    ] = None
    examples: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help='Questions: JSONL with "question", "answer" and "document" (a path) or "context" (a text); '
            "or what winnow eval --write wrote.",
            show_default="generated ones, for the bundled model",
        ),
    ] = None
    metric: MetricName = DEFAULT_METRIC
    documents: Annotated[
        int | None,
        typer.Option(
            min=1, help="Generated documents to choose by, and as many to confirm; or the most to use of --examples."
        ),
    ] = None
    share: Annotated[
        float | None,
        typer.Option(
            "--split",
            help="Share of the documents of --examples to choose by; the rest confirm the choice.",
            show_default=f"{SHARE}, or {SHARE_OF_VALIDATION} of a benchmark's validation part",
        ),
    ] = None
    seed: Annotated[int, typer.Option(help="Seed for splitting the documents, or for generating them.")] = 0
    max_new_tokens: MaxNewTokens = MAX_NEW_TOKENS
    picture: Annotated[Path | None, typer.Option(parser=result_file, metavar="PNG", help="Draw accuracy by value.")] = (
        None
    )
    journal: JournalPath = None
    force: Force = False
