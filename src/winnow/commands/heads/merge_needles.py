"""`winnow heads merge` for needles: the runs of all shards, and their mean."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

import torch
from rich.markup import escape

from winnow.bundled import NAME
from winnow.commands.console import output
from winnow.commands.heads.needle_table import agreement_of, report, told_right, what_was_done
from winnow.commands.inputs import InputError
from winnow.commands.options.heads.merge import MergeOptions
from winnow.estimate.journal import Journal
from winnow.estimate.needle.merging import (
    NeedleConfig,
    merged_halves,
    merged_runs,
    needle_config,
    settings_of_journal,
)
from winnow.estimate.needle.run import Outcome
from winnow.estimate.split_half import check_signal
from winnow.heads import HeadScores


def merge_needles(journals: Sequence[Journal], options: MergeOptions) -> None:
    """Writes the table of scores that the journals of all shards give together."""
    config = needle_config(journals[0])
    found = merged_runs(config, journals)
    missing = len(config.cells) - len(found)
    if missing:
        raise InputError(
            f"{missing} of {len(config.cells)} runs are in none of these journals: give the journals of all shards, "
            "and repeat the command of those that did not finish."
        )
    outcomes = list(found.values())
    table = _table(config, journals[0], outcomes, options)
    agreement = agreement_of(merged_halves(outcomes), table)
    if not options.keep_noise:
        remedy = "More --depths, other --examples or a larger model may do better. --keep-noise writes them."
        check_signal(agreement, told_right(outcomes), remedy)
    table.save(options.out)
    report(table, config.lengths, outcomes, agreement)
    output().print(f"  {escape(str(options.out))}  from {len(journals)} journals", soft_wrap=True)


def _table(config: NeedleConfig, journal: Journal, outcomes: Sequence[Outcome], options: MergeOptions) -> HeadScores:
    right = [outcome.scores for outcome in outcomes if outcome.scores is not None]
    if not right:
        raise InputError(
            f"None of {len(outcomes)} runs was answered right, so there are no scores: use other examples or another "
            "model."
        )
    table = HeadScores(
        torch.stack(right).mean(dim=0),
        method=f"headkv-{config.kind}",
        heads="query",
        model=config.model,
        seed=config.seed,
        samples=len(right),
        date=date.today().isoformat(),
        license=options.license or ("Apache-2.0" if config.model == NAME else ""),
        notes=options.notes or what_was_done(config.examples, config.lengths, len(config.depths), len(outcomes)),
        settings=settings_of_journal(journal),
    )
    return table if options.per == "query" else table.grouped(config.heads)
