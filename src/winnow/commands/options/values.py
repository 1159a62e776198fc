"""Values of options that are texts, numbers and names of results, checked when they are read."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

import typer

from winnow.budget import Budget
from winnow.errors import BudgetError, closest
from winnow.metrics.registry import METRICS


def plain_text(value: str) -> str:
    """A text. Raises typer.BadParameter where it cannot be written as UTF-8."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as problem:
        raise typer.BadParameter(f"it is not valid UTF-8 text (at character {problem.start}).") from None
    return value


def device_name(value: str) -> str:
    """The name of a device. Raises typer.BadParameter for what is none; whether it is there, torch says."""
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", value):
        raise typer.BadParameter(f"there is no device {value!r}; use auto, cpu, cuda, cuda:1 or the like, or mps.")
    return value


def temperature(value: str | float) -> float:
    """A temperature of sampling. Raises typer.BadParameter where it is no finite number, or below 0."""
    number = _number(value)
    if not 0 <= number < math.inf:
        raise typer.BadParameter(f"{value} is not a temperature; give 0 (the most likely token) or more, as in 0.7.")
    return number


def share(value: str | float) -> float:
    """A share above 0, up to 1. Raises typer.BadParameter where it is none."""
    number = _number(value)
    if not 0 < number <= 1:
        raise typer.BadParameter(f"{value} is not a share; give one above 0, up to 1, as in 0.9.")
    return number


def pause(value: str | float) -> float:
    """Seconds of a pause. Raises typer.BadParameter where they are no finite number, or below 0."""
    number = _number(value)
    if not 0 <= number < math.inf:
        raise typer.BadParameter(f"{value} is not a number of seconds; give 0 or more, as in 0.2.")
    return number


def budget_list(value: str) -> list[str]:
    """Budgets between commas. Raises typer.BadParameter where one is empty; what budgets may be, methods say."""
    budgets = [each.strip() for each in value.split(",")]
    if not all(budgets):
        raise typer.BadParameter(f"{value!r} is not a list of budgets, such as '1%,2%,5%'.", param_hint="--budgets")
    return budgets


def byte_count(value: str | int) -> int:
    """Bytes of "8GiB" or "512MiB". Raises typer.BadParameter where it is no number of bytes."""
    try:
        found = Budget.parse(value)
    except BudgetError:
        found = None
    if found is None or found.unit != "bytes":
        raise typer.BadParameter(f"{value!r} is not a number of bytes, such as 8GiB or 512MiB.")
    return int(found.amount)


def metric_name(value: str) -> str:
    """The name of a metric. Raises typer.BadParameter where there is none of this name."""
    if value not in METRICS:
        raise typer.BadParameter(f"{value!r} is not a metric: {closest(value, METRICS)}")
    return value


def _number(value: str | float) -> float:
    """NaN where it is none, which no range holds."""
    try:
        return float(value)
    except ValueError:
        return math.nan


def result_file(value: str | Path) -> Path:
    """The name of a file of results. Raises typer.BadParameter where it names none, or a folder."""
    text = _name(value)
    if text.endswith((os.sep, f"{os.sep}.", f"{os.sep}..")):
        raise typer.BadParameter(f"{text!r} names a folder; name a file in it.")
    return Path(text)


def result_folder(value: str | Path) -> Path:
    """The name of a folder for results. Raises typer.BadParameter where it names none."""
    return Path(_name(value))


def _name(value: str | Path) -> str:
    # Shells leave the ~ of --out=~/file to us.
    text = os.path.expanduser(os.fspath(value))
    if not text.strip():
        raise typer.BadParameter("a name cannot be empty, or only spaces.")
    if text == "-":
        raise typer.BadParameter("results cannot go to standard output; give a name.")
    try:
        whole = b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        whole = False
    if not whole:
        raise typer.BadParameter(f"{text!r} cannot be the name of a file.")
    return text
