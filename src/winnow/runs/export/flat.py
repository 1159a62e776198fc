"""All rows of a run in one file: a table, or JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from winnow.runs.folder import Run
from winnow.runs.rows import Row

_NESTED = ("scores", "facts", "answers", "kept", "environment")


def csv_text(run: Run) -> str:
    """A table with one row per result, after a line with the names of columns.

    Scores, facts and environments are columns of their own, "score_…", "fact_…" and "environment_…"; answers are a JSON
    list. Slots of single heads are in the JSON form only.
    """
    scores = _names(row.scores for row in run.rows)
    facts = _names(row.facts for row in run.rows)
    environments = _names(run.environments)
    of_run = {"model": run.about.model.name, "protocol": run.about.protocol.get("name")}
    plain = [name for name in Row.__dataclass_fields__ if name not in _NESTED]
    nested = [f"{kind}_{name}" for kind, names in (("score", scores), ("fact", facts)) for name in names]
    columns = [*of_run, *plain, *nested, "answers", *(f"environment_{name}" for name in environments)]
    entries = (
        {
            **of_run,
            **asdict(row),
            **{f"score_{name}": value for name, value in row.scores.items()},
            **{f"fact_{name}": value for name, value in row.facts.items()},
            "answers": json.dumps(row.answers, ensure_ascii=False),
            **{f"environment_{name}": value for name, value in run.environment_of(row).items()},
        }
        for row in run.rows
    )
    return table_text(columns, entries)


def json_text(run: Run) -> str:
    """An object with all facts of the run under "about" and all results under "rows"."""
    return json.dumps({"about": asdict(run.about), "rows": [asdict(row) for row in run.rows]}, ensure_ascii=False)


def table_text(columns: Sequence[str], entries: Iterable[dict[str, Any]]) -> str:
    """A CSV table (RFC 4180); entries without a column are left out, columns without an entry empty."""
    text = io.StringIO()
    # Python puts quotes around a carriage return only where lines end with one.
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\r\n")
    writer.writeheader()
    writer.writerows(entries)
    return text.getvalue()


def _names(mappings: Iterable[Iterable[str]]) -> list[str]:
    """All names, in the order in which they come."""
    return list(dict.fromkeys(name for each in mappings for name in each))
