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
    """Evaluate methods and budgets on a benchmark, and keep every result in a folder.

    The full cache is always evaluated, too: the others are compared with it. To resume a stopped run, repeat the
    command. Methods, budgets, tasks and examples can be added later.
    """

    benchmark: Annotated[str, typer.Argument(help="One that winnow benchmarks lists.")]
    methods: Annotated[
        str, typer.Option(metavar="LIST", help="Methods, with or without a budget of their own: 'snapkv,adakv@10%'.")
    ] = "adakv"
    budgets: Annotated[str, typer.Option(metavar="LIST", help="Budgets for methods without one of their own.")] = (
        "5%,10%,25%"
    )
    protocol: Annotated[str, typer.Option(help="One that winnow benchmarks --protocols lists.")] = "plain"
    tasks: Annotated[
        str | None, typer.Option(metavar="LIST", help="Tasks of the benchmark to run.", show_default="all of them")
    ] = None
    examples: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Examples per task and length.", show_default="as many as there are"),
    ] = None
    lengths: Annotated[
        str | None,
        typer.Option(
            metavar="LIST", help="Prompt lengths in tokens, for generated benchmarks.", show_default="the benchmark's"
        ),
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="Seed of generated and sampled examples.")] = 0
    data: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Folder or file with the benchmark's texts, if Winnow does not ship them."),
    ] = None
    split: Annotated[
        Literal["test", "validation", "rest"],
        typer.Option(
            help="test: the examples of published results. validation: those that the protocol holds out for tuning. "
            "rest: all but these."
        ),
    ] = "test"
    out: Annotated[
        Path | None,
        typer.Option(parser=result_folder, metavar="DIR", help="Folder of the run.", show_default="required for a run"),
    ] = None
    write: Annotated[
        Path | None,
        typer.Option(
            parser=result_file,
            metavar="FILE",
            help="Run nothing; write the prompts and right answers to a .jsonl file, for --examples of winnow heads.",
        ),
    ] = None
    force: Force = False
    fold: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Compress the answer, too, every N tokens: for long answers."),
    ] = None
    batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Maximum number of questions about one context to answer side by side.",
            show_default="what fits into free memory: up to 8, or 32 on a GPU",
        ),
    ] = None
    together: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="Maximum number of methods to decode side by side: faster, but decoding is not timed.",
        ),
    ] = 1
    allow_zero: Annotated[
        bool, typer.Option("--allow-zero", help="Continue even if the full cache gets no answer right.")
    ] = False
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False
    plugins: Plugins = None

    @property
    def folder(self) -> Path:
        """The folder of the run. Raises BadParameter where none is named."""
        if self.out is None:
            raise typer.BadParameter("is required: name the folder of the run.", param_hint="--out")
        return self.out
