"""Values of options that are texts and names of results, checked when they are read."""

from __future__ import annotations

import os
from pathlib import Path

import typer


def plain_text(value: str) -> str:
    """A text. Raises typer.BadParameter where it cannot be written as UTF-8."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as problem:
        raise typer.BadParameter(f"it is not UTF-8 text (character {problem.start}).") from None
    return value


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
    text = os.fspath(value)
    if not text.strip():
        raise typer.BadParameter("a name cannot be empty, nor of spaces only.")
    if text == "-":
        raise typer.BadParameter("results cannot go to standard output; give a name.")
    try:
        whole = b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        whole = False
    if not whole:
        raise typer.BadParameter(f"{text!r} cannot be a name.")
    return text
