"""The fidelity study in tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from answers import Tally
from attention_error import Error
from reporting import markdown_table
from winnow.tasks import QUESTION_KINDS

Errors = Mapping[str, Mapping[str, Error]]
"""Model -> store -> error."""


def store_table(stores: Sequence[str], errors: Mapping[str, Error], tallies: Mapping[str, Tally]) -> str:
    """Bytes, output errors and accuracy of stores on the whole cache of one model."""
    body = []
    for store in stores:
        own, tally = errors[store], tallies[store]
        kinds = [f"{100 * tally.accuracy_in(kind):.0f} %" for kind in QUESTION_KINDS]
        shown = [f"{100 * own.share:.1f} %", f"{100 * own.error:.2f} %", f"{100 * tally.accuracy:.1f} %"]
        body.append([f"`{store}`", *shown, *kinds])
    return markdown_table(["store", "bytes of dense slots", "output error", "accuracy", *QUESTION_KINDS], body)


def wide_table(stores: Sequence[str], errors: Errors, models: Sequence[str]) -> str:
    """Bytes and errors of stores on models without a task."""
    head = ["store", *(f"{model}: bytes" for model in models), *(f"{model}: error" for model in models)]
    body = []
    for store in stores:
        own = [errors[model].get(store) for model in models]
        if all(own):
            shares = [f"{100 * each.share:.1f} %" for each in own if each]
            body.append([f"`{store}`", *shares, *(f"{100 * each.error:.2f} %" for each in own if each)])
    return markdown_table(head, body)


def frontier_table(rows: Mapping[str, Sequence[Tally | None]], columns: Sequence[str]) -> str:
    """Accuracy of a method with a store, a column per share of bytes; the best of a column in bold."""
    best = [max(t.accuracy for t in column if t) for column in zip(*rows.values(), strict=True)]
    body = [[f"`{name}`", *(_cell(t, top) for t, top in zip(row, best, strict=True))] for name, row in rows.items()]
    return markdown_table(["method", *columns], body)


def winners_table(rows: Mapping[str, Sequence[Tally | None]], columns: Sequence[str], dense: Sequence[str]) -> str:
    """For every share of bytes, the best method, and the best that leaves slots dense."""
    body = []
    for index, column in enumerate(columns):
        at = {name: row[index].accuracy for name, row in rows.items() if row[index] is not None}  # type: ignore[union-attr]
        own = {name: at[name] for name in dense if name in at}
        best, plain = max(at, key=lambda name: at[name]), max(own, key=lambda name: own[name], default="")
        shown = f"`{plain}` {100 * own[plain]:.0f} %" if plain else "none fits"
        body.append([column, f"`{best}`", f"{100 * at[best]:.0f} %", shown])
    return markdown_table(["bytes of the full cache", "best", "accuracy", "best with dense slots"], body)


def _cell(tally: Tally | None, best: float) -> str:
    if tally is None:
        return "does not fit"
    shown = f"{100 * tally.accuracy:.0f} %"
    return f"**{shown}**" if tally.accuracy == best else shown
