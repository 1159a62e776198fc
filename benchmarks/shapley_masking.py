"""CoKV's masking study (its Tables 1 and 16 to 18) on the bundled model: heads reduced to their window, by score."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from reporting import markdown_table
from winnow.estimate.cokv.examples import ValidationExample
from winnow.estimate.cokv.settings import Terms
from winnow.estimate.cokv.utility import CoalitionUtility
from winnow.models import ModelSource
from winnow.report.style import FAINT, INK, add_title, light_grid, line_style, new_figure, quiet_frame, save
from winnow.tasks import QUESTION_KINDS, generate_document

LAYERS, HEADS = 4, 4
PLAYERS = LAYERS * HEADS
MASKED = (1, 2, 4, 8)
RANDOM_ORDERS = 16
FIRST_DOCUMENT, DOCUMENTS = 1_000_000, 50
"""Apart from those that scores are estimated from."""
QUESTIONS = DOCUMENTS * len(QUESTION_KINDS)
TERMS = Terms()


class Masking(NamedTuple):
    """Accuracy with so many heads reduced to their window, for every number in MASKED."""

    name: str
    top: list[float]
    low: list[float]
    spread: list[float]
    """Standard deviation over the random orders; empty for scores."""


def mask_study(source: ModelSource, model: PreTrainedModel, tables: dict[str, Tensor]) -> tuple[float, list[Masking]]:
    """Accuracy of the full cache, and of every table [16] of scores, on documents of the evaluation."""
    examples = [
        ValidationExample(document.text, question.text, question.expected)
        for seed in range(FIRST_DOCUMENT, FIRST_DOCUMENT + DOCUMENTS)
        for document in [generate_document(seed, 512, questions_per_kind=1)]
        for question in document.questions
    ]
    orders = [(name, torch.argsort(values, descending=True, stable=True)) for name, values in tables.items()]
    rng = random.Random(0)
    orders += [("random", torch.tensor(rng.sample(range(PLAYERS), PLAYERS))) for _ in range(RANDOM_ORDERS)]
    masks = torch.stack([torch.ones(PLAYERS, dtype=torch.bool), *(m for _, order in orders for m in masked(order))])
    utility = CoalitionUtility(model, source.tokenizer, examples, TERMS)
    answers = torch.tensor([utility(index, masks.view(-1, LAYERS, HEADS)) for index in range(len(examples))])
    full, *rest = answers.mean(dim=0).tolist()
    per_order = torch.tensor(rest).view(len(orders), 2, len(MASKED))
    return full, [_masking(name, orders, per_order) for name in dict.fromkeys(name for name, _ in orders)]


def masked(order: Tensor) -> Iterator[Tensor]:
    """[16] each: without the top k for every k, then without the lowest k."""
    for ends in (lambda k: order[:k], lambda k: order[-k:]):
        for count in MASKED:
            mask = torch.ones(PLAYERS, dtype=torch.bool)
            mask[ends(count)] = False
            yield mask


def _masking(name: str, orders: Sequence[tuple[str, Tensor]], accuracies: Tensor) -> Masking:
    mine = accuracies[[index for index, (other, _) in enumerate(orders) if other == name]]
    if name != "random":
        return Masking(name, mine[0, 0].tolist(), mine[0, 1].tolist(), [])
    both = mine.flatten(0, 1)
    mean = both.mean(dim=0).tolist()
    return Masking(name, mean, mean, both.std(dim=0).tolist())


def mask_table(full: float, rows: Sequence[Masking]) -> str:
    """As the paper's Tables 16 to 18."""
    body = [["full cache", "", *[percent(full)] * len(MASKED)]]
    for row in rows:
        if row.spread:
            both = [f"{percent(mean)} ± {100 * wide:.1f}" for mean, wide in zip(row.top, row.spread, strict=True)]
            body.append([row.name, f"any, {2 * RANDOM_ORDERS} draws", *both])
            continue
        body.append([row.name, "top", *map(percent, row.top)])
        body.append([row.name, "lowest", *map(percent, row.low)])
    return markdown_table(["scores", "masked", *(f"{count} heads" for count in MASKED)], body)


def draw_masking(path: Path, full: float, rows: Sequence[Masking]) -> Path:
    """Two panels: the most important heads masked, and the least important ones."""
    figure = new_figure(9.5, 4.4)
    panels = (("the most important k heads masked", "top"), ("the least important k heads masked", "low"))
    for place, (title, which) in enumerate(panels):
        axes = figure.add_axes((0.08 + 0.4 * place, 0.14, 0.34, 0.62))
        quiet_frame(axes)
        axes.axhline(100 * full, color=INK, linestyle=(0, (6, 3)), linewidth=1.1, zorder=1, label="full cache")
        for index, row in enumerate(rows):
            values = [100 * value for value in getattr(row, which)]
            style = line_style(index) if not row.spread else {"color": FAINT, "marker": "o"}
            axes.plot(MASKED, values, label=row.name, linewidth=1.8, markersize=5, clip_on=False, **style)
            if row.spread:
                wide = [100 * each for each in row.spread]
                low, high = ([min(100, v + sign * w) for v, w in zip(values, wide, strict=True)] for sign in (-1, 1))
                axes.fill_between(MASKED, low, high, color=FAINT, alpha=0.15, linewidth=0)
        axes.set_xscale("log", base=2)
        axes.set_xticks(MASKED, [str(count) for count in MASKED])
        axes.minorticks_off()
        axes.set_ylim(0, 105)
        axes.set_yticks(range(0, 101, 20), [f"{each}%" for each in range(0, 101, 20)])
        light_grid(axes)
        axes.set_title(title, fontsize=10.5, color=INK, loc="left")
        axes.set_xlabel("k", color=INK)
        if place == 0:
            axes.set_ylabel("questions answered right", color=INK)
            lines, labels = axes.get_legend_handles_labels()
            figure.legend(lines, labels, loc="center left", bbox_to_anchor=(0.835, 0.45), frameon=False, fontsize=9.5)
    add_title(
        figure,
        "Which heads can be reduced to their window?",
        f"Bundled model, 16 KV heads, {QUESTIONS} questions about documents of 512 tokens, window {TERMS.window}",
        left=0.035,
    )
    return save(figure, path)


def percent(share: float) -> str:
    """A share of 1 as a percentage."""
    return f"{100 * share:.1f}%"
