"""Tables on terminals that are too narrow for them."""

from __future__ import annotations

import io
from collections import Counter

import pytest
from rich.console import Console
from rich.table import Table

from support.written_runs import rows_of, run_of
from winnow.commands.answer_costs import _table
from winnow.commands.compare_table import _table as compare_table
from winnow.commands.models import _recommended_table
from winnow.commands.recommended import recommended
from winnow.commands.whole_table import print_whole
from winnow.runs.compare import compare_runs
from winnow.runs.intervals import Bootstrap

METHODS = ("aperturekv+spark(0.8)+bits(8) @ 64KiB", "aperturekv+spark(0.8)+bits(4) @ 64KiB")


def printed(table: Table, width: int, terminal: bool = True) -> list[str]:
    file = io.StringIO()
    print_whole(Console(file=file, width=width, force_terminal=terminal, color_system=None, highlight=False), table)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def characters(lines: list[str]) -> Counter[str]:
    """All but blanks, which are the same however a name is folded."""
    return Counter("".join("".join(lines).split()))


def costs() -> Table:
    table = _table("slots per head", "cache held")
    for number, method in enumerate(METHODS):
        table.add_row(method, f"{123456 + number}", "12.3 MiB")
    return table


def test_names_fold_where_that_is_enough() -> None:
    lines = printed(costs(), 60)
    assert max(map(len, lines)) <= 60
    assert len(lines) == 5
    for first, second, method in ((lines[1], lines[2], METHODS[0]), (lines[3], lines[4], METHODS[1])):
        assert first.split()[-3:-2] == [f"{123456 + METHODS.index(method)}"]
        assert (first[:32].strip() + second).replace(" ", "") == method.replace(" ", "")


@pytest.mark.parametrize(("width", "terminal"), [(40, True), (40, False), (80, True)])
def test_lines_are_whole_where_names_cannot_fold_enough(width: int, terminal: bool) -> None:
    lines = printed(costs(), width, terminal)
    assert [line.rpartition("KiB")[0] + "KiB" for line in lines[1:]] == list(METHODS)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_comparisons_are_whole(width: int) -> None:
    rows = [row for method in ("full", *METHODS) for row in rows_of("niah_multikey_2", method, [1.0, 0.0, 1.0])]
    run, bootstrap = run_of(rows), Bootstrap()
    table = compare_table([run], compare_runs([run]).comparisons, bootstrap)
    lines = printed(table, width)
    assert characters(lines) == characters(printed(table, 1000))
    assert sum("-63.2 … +63.2  1.0000  not told apart" in line for line in lines) == 2
    assert (max(map(len, lines)) <= width) == (width == 120)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_models_are_whole(width: int) -> None:
    lines = printed(_recommended_table(recommended()), width)
    for shape in recommended():
        (line,) = (each for each in lines if f" {shape.name} " in each)
        assert f"{shape.context:,}" in line.split()
        assert f"{shape.heads}/{shape.kv_heads}" in line.split()
    assert characters(lines) == characters(printed(_recommended_table(recommended()), 1000))
