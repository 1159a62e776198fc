"""The table of `winnow inspect`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from winnow.diagnostics import Diagnosis

READING = {
    "coverage": "tokens kept in any head of any layer; RTD: in any head of a layer; IoU: overlap of two heads. They "
    "show how the budget is spread over the text. More is not better: random tokens cover most of it.",
    "cosine": "likeness of two of the last {window} queries, and after diversification: of the prompt, not of what is "
    "lost.",
    "channels": "the saliency of a key channel deviates by {cv:.2f} of its mean from token to token (CV), and of the "
    "half that is best for all tokens {overlap:.0%} are in a token's own half, 50% by chance: of the prompt, like the "
    "cosine. SPARK argues from a large first and a small second that stores should choose per token.",
    "mass": "attention of the last {queries} queries that falls on kept tokens, every head counted alike. A method "
    "that starves heads which no answer needs keeps less of it, and may answer better.",
    "error": "of those queries' attention output, relative; layer by layer, so errors do not add up. It is nearest to "
    "a loss, with the same reservation.",
    "answers": "no measure here tells them: see winnow run --compare with the same document and question.",
}
"""Measures, and the evidence that each of them is."""


def diagnosis_table(diagnoses: Sequence[Diagnosis]) -> Table:
    """One row per method; means over heads and layers, with the extremes in brackets."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("method", overflow="fold")
    for name in ("slots", "coverage", "RTD", "IoU", "cosine", "mass (least)", "error (worst layer)"):
        table.add_column(name, justify="right")
    for diagnosis in diagnoses:
        table.add_row(escape(str(diagnosis.method)), *_cells(diagnosis))
    return table


def reading_table(first: Diagnosis) -> Table:
    """Measures in words, with what a diagnosis of any method found out about the prompt alone."""
    table = Table(box=None, pad_edge=False, show_header=False, style="dim")
    table.add_column(no_wrap=True)
    table.add_column()
    found = {
        "window": first.window,
        "queries": first.queries,
        "cv": first.channel_cv,
        "overlap": first.channel_overlap,
    }
    for measure, words in READING.items():
        table.add_row(measure, words.format_map(found))
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
