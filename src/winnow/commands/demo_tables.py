"""The tables of `winnow demo`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from rich.table import Table

from winnow.commands.formats import written_bytes, written_share, written_speed
from winnow.evaluate import Score


def accuracy_table(scores: Sequence[Score]) -> Table:
    """Accuracy, methods down and budgets across, with what compressing adds to the prefill."""
    budgets = list(dict.fromkeys(score.budget for score in scores if score.method != "full"))
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("method", style="bold", no_wrap=True)
    for budget in budgets:
        table.add_column(budget, justify="right")
    table.add_column("all", justify="right")
    table.add_column("compressing", justify="right")
    for method, cells in _by_method(scores).items():
        overhead = fmean(score.compress_share for score in cells)
        accuracies = {score.budget: _percent(score.accuracy) for score in cells}
        everything = accuracies.pop("everything", "")
        row = [accuracies.get(budget, "") for budget in budgets]
        table.add_row(method, *row, everything, written_share(overhead, 1))
    return table


def cost_table(scores: Sequence[Score]) -> Table:
    """Memory and speed of decoding at every budget, mean over the methods."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("budget", style="bold")
    for name in ("slots per head", "cache held", "of full", "decode"):
        table.add_column(name, justify="right")
    groups: defaultdict[str, list[Score]] = defaultdict(list)
    for score in scores:
        groups["all" if score.budget == "everything" else score.budget].append(score)
    for budget, cells in sorted(groups.items(), key=lambda group: group[1][0].mean_slots):
        held, full = fmean(s.held_bytes for s in cells), fmean(s.full_bytes for s in cells)
        speeds = [score.decode_speed for score in cells if score.decode_speed]
        table.add_row(
            budget,
            f"{fmean(s.mean_slots for s in cells):,.0f}",
            written_bytes(held),
            written_share(held, full),
            written_speed(fmean(speeds) if speeds else None),
        )
    return table


def _by_method(scores: Sequence[Score]) -> dict[str, list[Score]]:
    groups: defaultdict[str, list[Score]] = defaultdict(list)
    for score in scores:
        groups[score.method].append(score)
    return groups


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"
