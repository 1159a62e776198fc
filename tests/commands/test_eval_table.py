"""The table at the end of `winnow eval`."""

from __future__ import annotations

import io
import re
from collections import Counter
from dataclasses import replace

import pytest
from rich.console import Console

from support.runs import ROW
from winnow.commands.eval_table import print_table
from winnow.runs.summary import summaries

LONG = "adakv(window=16, kernel=5, sinks=4)+bits(k=8, v=4, round=queries, dense_first=1) @ 10%"
TASKS = ("niah_single_1", "niah_multikey_2", "niah_multivalue", "qa_2")
ROWS = [replace(ROW, task=task, method=method) for task in TASKS for method in (LONG, "full")]


def printed(rows, **settings) -> str:
    file = io.StringIO()
    print_table(Console(file=file, highlight=False, **settings), summaries(rows))
    return file.getvalue()


def test_names_are_whole_where_output_is_no_terminal() -> None:
    heading, *rows = printed(ROWS, width=120).splitlines()
    assert heading.split()[:6] == ["method", "score", *TASKS]
    assert len(rows) == 3
    assert rows[0].startswith(LONG)
    assert {len(rows[0]), len(rows[1])} == {len(heading)}


@pytest.mark.parametrize("width", [60, 80, 120, 160])
def test_nothing_is_cut_on_a_terminal(width: int) -> None:
    found = printed(ROWS, width=width, force_terminal=True, no_color=True, legacy_windows=False)
    text = re.sub(r"\x1b\[[\d;]*m", "", found)
    assert Counter("".join(text.split())) == Counter("".join(printed(ROWS, width=120).split()))
    assert text.split()[:6] == ["method", "score", *TASKS]
    assert text.count("100.0 (47–100)") == 2


def test_the_full_cache_has_no_interval_against_itself() -> None:
    scores = {"nll": 0.5, "kl": 0.0, "agreement": 1.0}
    rows = [replace(ROW, method=method, scores=scores, task="text") for method in ("full", "snapkv @ 5%")]
    heading, full, other, legend = printed(rows, width=120).splitlines()
    assert heading.split()[1:4] == ["perplexity", "kl", "agreement"]
    assert full.split()[1:5] == ["1.649", "0.0000", "100.0", "1"]
    assert other.split()[5:7] == ["100.0", "(5–100)"]
    # There is no score of which it could tell.
    assert legend == "decoding: time of a token, in a batch its share."


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.0004, "0.4 ms"), (0.0021, "2.1 ms"), (0.00994, "9.9 ms"), (0.00996, "10 ms"), (0.2, "200 ms")],
)
def test_short_times_have_a_decimal(seconds: float, told: str) -> None:
    lines = printed([replace(ROW, compress_seconds=seconds, decode_seconds=4 * seconds)], width=120).splitlines()
    assert lines[1].split()[-4:] == told.split() * 2
