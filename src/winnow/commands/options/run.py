"""The options of `winnow run`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from winnow.commands.options.shared import (
    Force,
    GenerationOptions,
    MethodOptions,
    MetricName,
    ModelOptions,
    PrefillOptions,
    PromptOptions,
    Truncate,
)
from winnow.commands.options.values import budget_list, plain_text, result_file
from winnow.metrics import DEFAULT_METRIC


@dataclass(frozen=True, kw_only=True)
class RunOptions(MethodOptions, ModelOptions, PromptOptions, PrefillOptions, GenerationOptions):
    """Answer questions about a document from a compressed cache."""

    document: Annotated[
        str | None, typer.Option(metavar="FILE", help="Text file to ask about; - for standard input.")
    ] = None
    question: Annotated[str | None, typer.Option(parser=plain_text, metavar="TEXT", help="Question to answer.")] = None
    batch: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help='JSONL file with one {"question": ...} per line. Optional: "answer" (the right one, or a list), and '
            '"document" (a path) or "context" (a text).',
        ),
    ] = None
    metric: MetricName = DEFAULT_METRIC
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="METHODS",
            help="Methods to compare with, at the same budget or their own: 'full,snapkv,adakv@10%'. One prefill "
            "serves all of them. Until they are done, the full cache stays in memory, and so do the queries that the "
            "methods look at (nearly all for h2o and expectedattention).",
        ),
    ] = None
    budgets: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Several budgets to try with every method: '1%,2%,5%'."),
    ] = None
    question_agnostic: Annotated[
        bool, typer.Option("--question-agnostic", help="Compress the document before the question is known.")
    ] = False
    truncate: Truncate = None
    fold: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Compress the answer, too, every N tokens, to stay within the budget."),
    ] = None
    csv: Annotated[
        Path | None,
        typer.Option(parser=result_file, metavar="FILE", help="Write a CSV table, one row per answer and method."),
    ] = None
    picture: Annotated[
        Path | None,
        typer.Option(
            parser=result_file,
            metavar="FILE",
            help="Draw the methods as a .png: accuracy if right answers are given, else memory and speed.",
        ),
    ] = None
    force: Force = False
    as_lines: Annotated[bool, typer.Option("--json", help="Print one JSON object per answer, not text.")] = False

    @property
    def all_budgets(self) -> list[str]:
        """The budgets to try; none for the default."""
        if self.budgets is None:
            return [] if self.budget is None else [self.budget]
        if self.budget is not None:
            raise typer.BadParameter("cannot be combined with --budget; list all budgets here.", param_hint="--budgets")
        return budget_list(self.budgets)
