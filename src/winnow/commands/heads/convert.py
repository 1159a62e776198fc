"""`winnow heads convert`: published tables of head scores, in Winnow's own format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import typer

from winnow.commands.checks import prepare_output
from winnow.commands.console import messages
from winnow.commands.heads.tables import NamedTable, columns_of, read_named_tables
from winnow.commands.inputs import InputError
from winnow.commands.options.heads.convert import ConvertOptions
from winnow.heads import HeadScores
from winnow.heads.storage import SUFFIX


def convert(options: ConvertOptions) -> None:
    """Writes one table, or the mean of several."""
    prepare_output(options.out, options.force, SUFFIX)
    named = read_named_tables(options)
    if len(named) > 1 and not options.mean:
        raise typer.BadParameter(
            f"these are {len(named)} tables ({', '.join(one.name for one in named)}), but only one can be written: "
            "give one of them, or --mean for their average."
        )
    _check_different(named)
    table = HeadScores.mean([one.table for one in named])
    model = table.model if options.model is None else options.model
    table = replace(table, model=model, license=options.license or table.license)
    table.save(options.out)
    layers, count = table.shape
    written = f"{options.out}: {table.method}, {layers} layers of {count} {columns_of(table)}s"
    messages().print(written, markup=False, soft_wrap=True)


def _check_different(named: Sequence[NamedTable]) -> None:
    """A task that counts twice under two names would go unnoticed in an average."""
    for one, other in combinations(named, 2):
        if one.table.shape == other.table.shape and bool((one.table.values == other.table.values).all()):
            raise InputError(
                f"{one.name} and {other.name} hold the same scores, which would count twice; leave one out."
            )
