"""Documents and methods that the command line gives."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer
from torch import Tensor

from winnow import files
from winnow.budget import Budget
from winnow.commands.options.shared import DEFAULT_BUDGET, GenerationOptions
from winnow.composition.method import Method
from winnow.composition.names import NamedMethod
from winnow.composition.syntax import Value, parse_setting, split_list
from winnow.errors import BudgetError, FileError, WinnowError
from winnow.evaluate.lookup import PromptLookup
from winnow.evaluate.sampling import Sampling
from winnow.files import LARGEST_TEXT, decode

STANDARD_INPUT = "-"


class InputError(WinnowError):
    """A file given on the command line cannot be used."""


def read_document(path: str) -> str:
    """The text of a file, or of standard input for "-". Raises InputError where there is none."""
    document = read_text(path)
    if not document.strip():
        raise InputError(f"{_shown(path)} is empty; give a document with text in it.")
    return document


def read_text(path: str) -> str:
    """Like `read_document`, but the text may be empty."""
    if path == STANDARD_INPUT:
        with _reading_standard_input():
            return decode(sys.stdin.buffer.read(LARGEST_TEXT + 1), _shown(path))
    try:
        return files.read_text(Path(path))
    except FileError as problem:
        raise InputError(str(problem)) from None


def read_questions() -> Iterator[str]:
    """Lines of standard input that are not empty, as they come. Raises InputError where one is no UTF-8 text."""
    with _reading_standard_input():
        for number, line in enumerate(sys.stdin.buffer, start=1):
            question = decode(line, f"{_shown(STANDARD_INPUT)}, line {number},").strip()
            if question:
                yield question


@contextmanager
def _reading_standard_input() -> Iterator[None]:
    try:
        yield
    except FileError as problem:
        raise InputError(str(problem)) from None
    except OSError as problem:
        raise InputError(f"Cannot read standard input: {problem.strerror or problem}.") from None


def _shown(path: str) -> str:
    return "Standard input" if path == STANDARD_INPUT else path


def build_methods(name: str, compare: str | None, budget: str | None, settings: Iterable[str]) -> list[Method]:
    """The chosen method with its `--set` parameters, then those to compare with, all at the same budget."""
    return build_sweep(name, compare, [] if budget is None else [budget], settings)


def build_sweep(name: str, compare: str | None, budgets: Sequence[str], settings: Iterable[str]) -> list[Method]:
    """The same at every one of several budgets, method after method."""
    parameters = dict(_setting(text) for text in settings)
    insist = bool(budgets) and compare is None
    given: Sequence[str | None] = budgets or [None]
    compared = [] if compare is None else split_list(compare)
    if compare is not None and not compared:
        raise typer.BadParameter(f"{compare!r} has no method; give some, as in 'full,snapkv'.", param_hint="--compare")
    _check_budgets(budgets)
    if budgets and compared:
        _check_taken(budgets[0], [name, *compared])
    chosen = [_built(name, budget, parameters, insist) for budget in given]
    others = [_built(other, budget, {}, insist=False) for other in compared for budget in given]
    return list(dict.fromkeys([*chosen, *others]))


def build_all(names: str, budgets: Sequence[str]) -> list[Method]:
    """Every method of a list, at every budget where it names none itself."""
    _check_budgets(budgets)
    return list(dict.fromkeys(_built(name, each, {}, insist=False) for name in split_list(names) for each in budgets))


def _check_budgets(budgets: Sequence[str]) -> None:
    """Raises BudgetError for what is no budget, even where no method takes it."""
    for budget in budgets:
        Budget.parse(budget)


def _check_taken(budget: str, names: Sequence[str]) -> None:
    """Raises BudgetError for a budget that none of several methods takes."""
    methods = [NamedMethod(name) for name in names]
    if not any(each.budget is None and each.takes_budget for each in methods):
        raise BudgetError(
            f"No method uses the budget {budget}: each has a budget of its own, or takes none. Leave out this budget, "
            "or theirs."
        )


def sampling_of(options: GenerationOptions) -> Sampling:
    """The choice of tokens that the options ask for."""
    return Sampling(options.temperature, options.top_p, options.seed)


def lookup_in(prompt: Tensor, options: GenerationOptions) -> PromptLookup | None:
    """The candidates for answers to a prompt [1, N] that the options ask for."""
    return PromptLookup(prompt[0].tolist(), options.lookup) if options.lookup else None


def _built(name: str, budget: str | None, parameters: dict[str, Value], insist: bool) -> Method:
    """Methods with a budget of their own, or without any, get none unless the user insists, which they refuse."""
    named = NamedMethod(name)
    if (named.budget is not None or not named.takes_budget) and not insist:
        return named.method(parameters=parameters)
    return named.method(DEFAULT_BUDGET if budget is None else budget, parameters)


def _setting(text: str) -> tuple[str, Value]:
    """One `--set`, read as an argument of a composed name."""
    try:
        setting = parse_setting(text)
    except (WinnowError, ValueError):
        raise typer.BadParameter(
            f"{text!r} is not of the form name=value, as in window=16.", param_hint="--set"
        ) from None
    if setting[0] in ("name", "budget"):
        option = {"name": "--method", "budget": "--budget"}[setting[0]]
        raise typer.BadParameter(f"use {option} for that.", param_hint="--set")
    return setting
