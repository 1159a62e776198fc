"""Methods for documents that are read before any question about them."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console

from winnow.commands.inputs import build_methods
from winnow.commands.options.shared import AHEAD_BUDGET, AHEAD_METHOD, AheadOptions
from winnow.composition.method import Method


def method_ahead(options: AheadOptions) -> Method:
    """The method that the options name, or the one that serves questions that nobody knows yet."""
    name, budget = options.method, options.budget
    if name is None:
        name, budget = AHEAD_METHOD, budget or AHEAD_BUDGET
    (chosen,) = build_methods(name, None, budget, options.settings or [])
    return chosen


def tell_of_blind_methods(methods: Iterable[Method], console: Console) -> None:
    """A line on methods that judge a document by its last tokens, which do not know what will be asked."""
    blind = dict.fromkeys(each.name for each in methods if each.scorer.watches_end)
    if blind:
        console.print(
            f"{', '.join(blind)}: keeps what the end of the document attends to, whatever later questions need; "
            f"{AHEAD_METHOD} at {AHEAD_BUDGET} keeps what any question may need.",
            style="dim",
            markup=False,
            soft_wrap=True,
        )
