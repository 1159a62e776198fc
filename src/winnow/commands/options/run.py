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
    """Ask a question about a document; answer it from a compressed cache."""

    document: Annotated[
        str | None, typer.Option(metavar="FILE", help="Text file to ask about; - for standard input.")
    ] = None
    question: Annotated[str | None, typer.Option(parser=plain_text, metavar="TEXT", help="The question.")] = None
    batch: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help='JSONL file with one {"question": ...} a line; "answer" (the right one, or a list of them) and '
            '"document" (a path) or "context" (a text) are optional.',
        ),
    ] = None
    metric: MetricName = DEFAULT_METRIC
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="METHODS",
            help="Other methods to show, at the same budget or at their own: 'full,snapkv,adakv@10%'. The prompt is "
            "prefilled once for all; meanwhile its full cache is held, and the queries that the methods look at "
            "(for h2o and expectedattention nearly all).",
        ),
    ] = None
    budgets: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Several budgets instead of one, for all methods: '1%,2%,5%'."),
    ] = None
    question_agnostic: Annotated[
        bool, typer.Option("--question-agnostic", help="Compress the document before the question is known.")
    ] = False
    truncate: Truncate = None
    fold: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Compress again every N answer tokens: memory stays within the budget."),
    ] = None
    csv: Annotated[
        Path | None,
        typer.Option(parser=result_file, metavar="FILE", help="Write a table, one row per answer and method."),
    ] = None
    picture: Annotated[
        Path | None,
        typer.Option(
            parser=result_file,
            metavar="FILE",
            help="Draw the methods (.png): accuracy where answers are known, else memory and speed.",
        ),
    ] = None
    force: Force = False
    as_lines: Annotated[bool, typer.Option("--json", help="One JSON object per answer instead of text.")] = False

    @property
    def all_budgets(self) -> list[str]:
        """The budgets to try; none for the default."""
        if self.budgets is None:
            return [] if self.budget is None else [self.budget]
        if self.budget is not None:
            raise typer.BadParameter("cannot be used together with --budget; name all of them.", param_hint="--budgets")
        return budget_list(self.budgets)
