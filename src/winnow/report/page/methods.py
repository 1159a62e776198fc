"""Methods of a section: their texts, taken apart, and the order in which they are shown."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from winnow.budget import Budget
from winnow.errors import BudgetError
from winnow.runs.rows import method_and_budget

FULL = "full"
_FOLDER = re.compile(r"(?<==)[^=,()\"']*/(?=[^=,()\"'/]+[,)])")
"""The folder of a parameter's file, as in "scores=/runs/model/cokv.safetensors"."""


class MethodName(NamedTuple):
    """A method as rows name it."""

    text: str
    base: str
    """Without its budget."""
    budget: str
    """Empty for a method that takes none."""


def method_name(text: str) -> MethodName:
    """A method's text, as in "adakv @ 10%", taken apart."""
    return MethodName(text, *method_and_budget(text))


def without_folders(texts: Iterable[str]) -> dict[str, str]:
    """Texts of methods by those that rows have: files by their names alone, where that leaves all methods different."""
    given = {text: method_and_budget(text)[0] for text in texts}
    short = {base: _FOLDER.sub("", base) for base in given.values()}
    names = list(short.values())
    return {text: _FOLDER.sub("", text) if names.count(short[base]) == 1 else text for text, base in given.items()}


def budgets_of(names: Iterable[MethodName]) -> list[str]:
    """Budgets from the smallest to the largest, those in percent first."""
    return sorted({name.budget for name in names if name.budget}, key=budget_order)


def budget_order(budget: str) -> tuple[int, float, str]:
    """Place of a budget among others; the last for what is none."""
    try:
        parsed = Budget.parse(budget)
    except BudgetError:
        return 3, 0.0, budget
    return ("percent", "tokens", "bytes").index(parsed.unit), parsed.amount, budget
