"""The table of `winnow inspect`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from winnow.diagnostics import Diagnosis

LEGEND = (
    "coverage: tokens kept in any head of any layer · RTD: in any head of a layer · IoU: overlap of two heads · "
    "cosine: of two of the last {window} queries, and after diversification · mass: share of the attention of the last "
    "{queries} queries on kept tokens · error: of their attention output, relative"
)


def diagnosis_table(diagnoses: Sequence[Diagnosis]) -> Table:
    """One row per method; means over heads and layers, with the extremes in brackets."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("method", overflow="fold")
    for name in ("slots", "coverage", "RTD", "IoU", "cosine", "mass (least)", "error (worst layer)"):
        table.add_column(name, justify="right")
    for diagnosis in diagnoses:
        table.add_row(escape(str(diagnosis.method)), *_cells(diagnosis))
    return table


def _cells(found: Diagnosis) -> tuple[str, ...]:
    worst = found.layers[found.worst_layer].error
    return (
        _slots(found),
        f"{found.coverage:,} ({found.coverage_share:.1%})",
        f"{found.rtd:.1%}",
        _ratio(found.iou),
        f"{_ratio(found.cosine)} → {_ratio(found.diversified_cosine)}",
        f"{found.mean_mass:.1%} ({found.least_mass:.1%})",
        f"{found.error:.2f} ({worst:.2f} in {found.worst_layer})",
    )


def _slots(found: Diagnosis) -> str:
    least, most = found.slot_range
    mean = f"{found.mean_slots:,.0f}"
    return mean if least == most else f"{mean} ({least:,}–{most:,})"


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
