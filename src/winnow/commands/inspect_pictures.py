"""The pictures of `winnow inspect`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from winnow.commands.inspect_prompt import Inspected
from winnow.composition.method import Method
from winnow.diagnostics import Diagnosis
from winnow.report import (
    HeadMap,
    Profile,
    Strip,
    draw_divergences,
    draw_heatmap,
    draw_overlaps,
    draw_profiles,
    draw_retention,
)
from winnow.report.style import short_labels, without_middle

# Characters of two or three lines, and those that fit beside the note of a strip.
_SUBTITLE, _LABEL = 240, 42

KINDS = ("retention", "slots", "overlap", "divergence")
"""Pictures of every method, in the order in which they are drawn."""


class PictureSubject(NamedTuple):
    """Model and prompt, as the pictures name them."""

    model: str
    inspected: Inspected

    @property
    def subtitle(self) -> str:
        """Model, length and question, cut where they are too long."""
        tokens = f"{self.inspected.prompt.shape[1]:,} tokens"
        asked = "no question" if self.inspected.question is None else f"asked: {self.inspected.question}"
        text = f"{self.model} · {tokens} · {asked}"
        return text if len(text) <= _SUBTITLE else f"{text[: _SUBTITLE - 1]}…"


def draw_pictures(folder: Path, diagnoses: Sequence[Diagnosis], subject: PictureSubject) -> list[Path]:
    """Four pictures of every method, and with several methods two that compare them; returns the paths written.

    Raises MissingPackage without matplotlib.
    """
    names = iter(picture_names([diagnosis.method for diagnosis in diagnoses]))
    pictures = []
    for diagnosis in diagnoses:
        pictures += [
            _retention(folder / next(names), [diagnosis], subject),
            _slots(folder / next(names), diagnosis, subject),
            _overlaps(folder / next(names), diagnosis, subject),
            _divergences(folder / next(names), diagnosis, subject),
        ]
    if len(diagnoses) > 1:
        pictures.append(_retention(folder / next(names), diagnoses, subject))
        pictures.append(_profiles(folder / next(names), diagnoses, subject))
    return pictures


def picture_names(methods: Sequence[Method]) -> list[str]:
    """Names of the pictures of these methods, in the order in which they are drawn."""
    names = [f"{stem}-{kind}.png" for stem in _stems(methods) for kind in KINDS]
    return [*names, "retention.png", "comparison.png"] if len(methods) > 1 else names


def _stems(methods: Iterable[Method]) -> list[str]:
    """A file name for every method: "snapkv(window=16) @ 2%" -> "snapkv-window=16-2pct", numbered where two are alike.

    Of characters that neither shells nor addresses of files have to quote.
    """
    stems: list[str] = []
    for method in methods:
        stem = re.sub(r"[^A-Za-z0-9_.+=]+", "-", str(method).replace("%", "pct")).strip("-.")[:80]
        stems.append(stem if stem not in stems else f"{stem}-{len(stems) + 1}")
    return stems


def _retention(path: Path, diagnoses: Sequence[Diagnosis], subject: PictureSubject) -> Path:
    facts = subject.inspected.facts
    strips = [
        Strip(label, _note(found, facts), found.retention.numpy(), max(len(layer.kept) for layer in found.layers))
        for label, found in zip(_labels(diagnoses), diagnoses, strict=True)
    ]
    marks = " · orange: the sentences that the answer is in" if facts else ""
    subtitle = subject.subtitle + marks
    return draw_retention(path, strips, "Which tokens each layer keeps, in how many heads", subtitle, facts)


def _note(found: Diagnosis, facts: Sequence[tuple[int, int]]) -> str:
    anywhere = found.retention.any(dim=0)
    needed = sorted({token for start, stop in facts for token in range(start, stop)})
    of_facts = f" · {int(anywhere[needed].sum())} of {len(needed)} fact tokens" if needed else ""
    return f"kept in a layer: {found.rtd:.1%} of all tokens, in any: {found.coverage_share:.1%}{of_facts}"


def _slots(path: Path, found: Diagnosis, subject: PictureSubject) -> Path:
    slots = _rectangle(found.slots)
    least, most = found.slot_range
    note = f"{found.mean_slots:,.0f} slots on average" + ("" if least == most else f", {least:,} to {most:,}")
    # Equal slots are in the middle of the colors, in every picture alike.
    high = max(1.0, most, 2 * found.mean_slots)
    table = HeadMap(_label(found), note, slots, low=0.0, high=high)
    return draw_heatmap(path, [table], "Where the budget goes", subject.subtitle)


def _rectangle(rows: Sequence[Sequence[int]]) -> NDArray[np.float64]:
    """[L, H]; layers with fewer heads than others end with zeros."""
    table = np.zeros((len(rows), max(len(row) for row in rows)))
    for index, row in enumerate(rows):
        table[index, : len(row)] = row
    return table


def _overlaps(path: Path, found: Diagnosis, subject: PictureSubject) -> Path:
    matrices = [layer.iou.numpy() for layer in found.layers]
    means = [layer.mean_iou for layer in found.layers]
    title = f"What two heads keep in common: {_label(found)}"
    return draw_overlaps(path, matrices, means, title, subject.subtitle)


def _divergences(path: Path, found: Diagnosis, subject: PictureSubject) -> Path:
    matrices = [layer.divergence.numpy() for layer in found.layers]
    means = [layer.mean_divergence for layer in found.layers]
    title = f"How far the scores of two heads are apart: λ = {found.diversify:g}, {_label(found)}"
    return draw_divergences(path, matrices, means, title, subject.subtitle)


def _profiles(path: Path, diagnoses: Sequence[Diagnosis], subject: PictureSubject) -> Path:
    profiles = [
        Profile(
            label,
            found.coverage_share,
            [layer.rtd for layer in found.layers],
            [layer.error for layer in found.layers],
        )
        for label, found in zip(_labels(diagnoses), diagnoses, strict=True)
    ]
    title = "What methods keep of a prompt, and what they lose"
    return draw_profiles(path, profiles, title, subject.subtitle)


def _labels(diagnoses: Sequence[Diagnosis]) -> list[str]:
    return short_labels([str(found.method) for found in diagnoses], _LABEL)


def _label(found: Diagnosis) -> str:
    return without_middle(str(found.method), _LABEL)
