"""The options of `winnow eval`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from winnow.commands.options.executors import ExecutorOptions
from winnow.commands.options.shared import Force, ModelOptions, Plugins
from winnow.commands.options.values import result_file, result_folder


@dataclass(frozen=True, kw_only=True)
class EvalOptions(ModelOptions, ExecutorOptions):
    """Put a benchmark to a model under methods and budgets; every result is kept in a folder.

    The full cache is always among the methods: the others are compared with it. A stopped run goes on with the same
    command; methods, budgets, tasks and examples can be added later.
    """

    benchmark: Annotated[str, typer.Argument(help="One of winnow benchmarks.")]
    methods: Annotated[
        str, typer.Option(metavar="LIST", help="Methods, with budgets of their own or not: 'snapkv,adakv@10%'.")
    ] = "adakv"
    budgets: Annotated[str, typer.Option(metavar="LIST", help="Budgets for the methods that name none.")] = "5%,10%,25%"
    protocol: Annotated[str, typer.Option(help="One of winnow benchmarks --protocols.")] = "plain"
    tasks: Annotated[
        str | None, typer.Option(metavar="LIST", help="Some of the benchmark's tasks.", show_default="all of them")
    ] = None
    examples: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Of every task and length.", show_default="as many as there are"),
    ] = None
    lengths: Annotated[
        str | None,
        typer.Option(
            metavar="LIST", help="Tokens of prompts, for benchmarks that are generated.", show_default="the benchmark's"
        ),
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="Of generated and sampled examples.")] = 0
    data: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Texts of benchmarks that are not shipped: a folder or a file.")
    ] = None
    split: Annotated[
        Literal["test", "validation", "rest"],
        typer.Option(
            help="Examples that published rows are of, or those that a protocol holds out for tuning, or all but these."
        ),
    ] = "test"
    out: Annotated[
        Path | None,
        typer.Option(parser=result_folder, metavar="DIR", help="Folder of the run.", show_default="needed for a run"),
    ] = None
    write: Annotated[
        Path | None,
        typer.Option(
            parser=result_file,
            metavar="FILE",
            help="In place of a run: write its prompts and right answers (.jsonl), for --examples of winnow heads.",
        ),
    ] = None
    force: Force = False
    fold: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Compress again every N answer tokens, for long answers."),
    ] = None
    batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Questions about one context that are answered side by side, at most.",
            show_default="what fits into free memory: up to 8, or 32 on a GPU",
        ),
    ] = None
    together: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="Methods whose answers are decoded side by side, at most: quicker, but without times of decoding.",
        ),
    ] = 1
    allow_zero: Annotated[
        bool, typer.Option("--allow-zero", help="Go on where the full cache answers nothing right.")
    ] = False
    as_json: Annotated[bool, typer.Option("--json", help="The table as JSON.")] = False
    plugins: Plugins = None

    @property
    def folder(self) -> Path:
        """The folder of the run. Raises BadParameter where none is named."""
        if self.out is None:
            raise typer.BadParameter("is needed: name the folder of the run.", param_hint="--out")
        return self.out
