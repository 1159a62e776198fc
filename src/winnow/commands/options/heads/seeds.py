"""Seeds of an estimation on a command line."""

from __future__ import annotations

import typer

from winnow.estimate.seeds import is_seed


def seed_number(value: str | int) -> int:
    """A seed. Raises typer.BadParameter where it is no whole number of 64 bits."""
    try:
        number = int(value)
    except ValueError:
        raise typer.BadParameter(f"{value!r} is not a whole number.") from None
    if not is_seed(number):
        raise typer.BadParameter(f"{number} has more than 64 bits; give a smaller number.")
    return number
