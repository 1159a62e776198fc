"""All commands of the `winnow` program, with their options; their jobs are named only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from winnow.commands.command import command
from winnow.commands.console import output
from winnow.commands.options.ask import AskOptions
from winnow.commands.options.benchmarks import BenchmarksOptions
from winnow.commands.options.chat import ChatOptions
from winnow.commands.options.compare import CompareOptions
from winnow.commands.options.compress import CompressOptions
from winnow.commands.options.demo import DemoOptions
from winnow.commands.options.eval import EvalOptions
from winnow.commands.options.export import ExportOptions
from winnow.commands.options.heads.centers import CentersOptions
from winnow.commands.options.heads.cokv import CokvOptions
from winnow.commands.options.heads.convert import ConvertOptions
from winnow.commands.options.heads.curves import CurvesOptions
from winnow.commands.options.heads.fetch import FetchOptions
from winnow.commands.options.heads.kvzip import KVzipOptions
from winnow.commands.options.heads.merge import MergeOptions
from winnow.commands.options.heads.needle import NeedleOptions
from winnow.commands.options.heads.show import ShowOptions
from winnow.commands.options.heads.tune import TuneOptions
from winnow.commands.options.heads.verify import VerifyOptions
from winnow.commands.options.inspect import InspectOptions
from winnow.commands.options.methods import MethodsOptions
from winnow.commands.options.models import ModelsOptions
from winnow.commands.options.report import ReportOptions
from winnow.commands.options.run import RunOptions
from winnow.commands.options.serve import ServeOptions
from winnow.version import __version__

_BRITISH = {"licence": "license"}
"""Options that can be spelled in another way, too."""

app = typer.Typer(
    name="winnow",
    help="Long-context language models in a fraction of their KV-cache memory.",
    epilog="Exit codes: 0 success, 1 failure, 2 wrong usage, 3 not confirmed (heads verify), 70 unexpected error, "
    "130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"token_normalize_func": lambda name: _BRITISH.get(name, name)},
)
heads = typer.Typer(
    name="heads",
    help="Estimate, convert and inspect head scores: how important every head of a model is.",
    no_args_is_help=True,
    add_completion=False,
)

app.command("run")(command(RunOptions, "winnow.commands.run:run"))
app.command("chat")(command(ChatOptions, "winnow.commands.chat:chat"))
app.command("compress")(command(CompressOptions, "winnow.commands.compress:compress"))
app.command("ask")(command(AskOptions, "winnow.commands.ask:ask"))
app.command("serve")(command(ServeOptions, "winnow.commands.serve:serve"))
app.command("methods")(command(MethodsOptions, "winnow.commands.methods:methods"))
app.command("models")(command(ModelsOptions, "winnow.commands.models:models"))
app.command("eval")(command(EvalOptions, "winnow.commands.eval:eval"))
app.command("benchmarks")(command(BenchmarksOptions, "winnow.commands.benchmarks:benchmarks"))
app.command("demo")(command(DemoOptions, "winnow.commands.demo:demo"))
app.command("inspect")(command(InspectOptions, "winnow.commands.inspect:inspect"))
app.command("compare")(command(CompareOptions, "winnow.commands.compare:compare"))
app.command("export")(command(ExportOptions, "winnow.commands.export:export"))
app.command("report")(command(ReportOptions, "winnow.commands.report:report"))
heads.command("show")(command(ShowOptions, "winnow.commands.heads.show:show"))
heads.command("convert")(command(ConvertOptions, "winnow.commands.heads.convert:convert"))
heads.command("fetch")(command(FetchOptions, "winnow.commands.heads.fetch:fetch"))
heads.command("needle")(command(NeedleOptions, "winnow.commands.heads.needle:needle"))
heads.command("cokv")(command(CokvOptions, "winnow.commands.heads.cokv:cokv"))
heads.command("kvzip")(command(KVzipOptions, "winnow.commands.heads.kvzip:kvzip"))
heads.command("curves")(command(CurvesOptions, "winnow.commands.heads.curves:curves"))
heads.command("centers")(command(CentersOptions, "winnow.commands.heads.centers:centers"))
heads.command("merge")(command(MergeOptions, "winnow.commands.heads.merge:merge"))
heads.command("tune")(command(TuneOptions, "winnow.commands.heads.tune:tune"))
heads.command("verify")(command(VerifyOptions, "winnow.commands.heads.verify:verify"))
app.add_typer(heads)


def _print_version(wanted: bool) -> None:
    if wanted:
        # Which kernels there are is known to torch's side of the package.
        from winnow.kernels import backend

        output().print(f"winnow {__version__} (kernels: {backend()})")
        raise typer.Exit


@dataclass
class Invocation:
    """One run of the program, as its own options say."""

    traceback: bool = False
    """True to print where an error came from."""


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print version and kernel backend."),
    ] = False,
    traceback: Annotated[
        bool,
        typer.Option("--traceback", envvar="WINNOW_TRACEBACK", help="Print the traceback of an error."),
    ] = False,
) -> None:
    """Options that come before the command."""
    context.ensure_object(Invocation).traceback = traceback
