"""Comparison of methods, runs or models: paired differences with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Literal, NamedTuple

from winnow.errors import closest
from winnow.runs.alike import check_alike
from winnow.runs.folder import Run, RunError, unfinished
from winnow.runs.intervals import DIFFERENCES, Bootstrap, Clusters, Estimate, mean_interval, sign_flip_p
from winnow.runs.measures import Measure, measures
from winnow.runs.pairs import Arm, Pairs, arms, find_arm, pair
from winnow.runs.rows import Row, shared_contexts

FULL = "full"
Verdict = Literal["better", "worse", "not told apart"]


class Wish(NamedTuple):
    """A choice of what is compared, and how surely."""

    baseline: str | None = None
    """A method; None: the full cache in one run, and the same method of the first run among several."""
    measure: str | None = None
    """None: the main one of every task."""
    models: bool = False
    """True: the runs are of different models."""
    bootstrap: Bootstrap = Bootstrap()


class Comparison(NamedTuple):
    """A method against its baseline, in one task or as the mean over tasks."""

    arm: Arm
    baseline: Arm
    tasks: tuple[str, ...]
    """One; for a mean all that it is over."""
    measure: Measure
    """For a mean over tasks that are judged differently that of the first."""
    examples: int
    """Those that both sides have; scores and difference are over them."""
    contexts: int
    missing: int
    """Examples of the baseline without a result of this side."""
    missing_in_baseline: int
    score: float
    baseline_score: float
    difference: Estimate
    """Score minus the baseline's, mean over tasks where there are several."""
    p: float
    """From the randomization test (`winnow.runs.intervals.sign_flip_p`)."""
    verdict: Verdict
    """Told apart where the interval is without 0 and p is not above what the interval leaves."""


class Compared(NamedTuple):
    """Results of a comparison."""

    comparisons: list[Comparison]
    """Arm by arm; the mean over its tasks behind them, where it has several and they can be averaged."""
    notes: list[str]
    """Lines on what differs between the runs though it may, and on what was left out."""


def compare_runs(runs: Sequence[Run], wish: Wish | None = None) -> Compared:
    """Compares all methods of one run, or several runs with the first.

    Raises RunError where the runs do not go together, there is no baseline, or no example that both sides have.
    """
    wish = wish or Wish()
    if empty := next((run for run in runs if not run.rows), None):
        raise RunError(f"{empty.path} has no results yet, and there is nothing to compare; run winnow eval first.")
    notes = [unfinished([run.path], run.missing, len(run.rows)) for run in runs if run.missing]
    notes += check_alike(runs, wish.models)
    comparisons = []
    single: dict[str, None] = {}
    for arm, baseline in _sides(runs, wish.baseline):
        pairs = pair(arm, baseline)
        if lacking := [each.task for each in pairs if not each.rows]:
            sides = f"{shown_arm(arm, runs)} and {shown_arm(baseline, runs)}"
            notes.append(f"{sides} have no example in common in {', '.join(lacking)}, which no mean counts.")
        comparisons += _of_arm(arm, baseline, pairs, wish)
        single.update(dict.fromkeys(each.task for each in pairs if len(each.rows) > 1 and each.contexts == 1))
    if not comparisons:
        there = ", ".join(dict.fromkeys(arm.method for run in runs for arm in arms(run))) or "none"
        advice = f"There are results of {there} only: let winnow eval add others, or name a --baseline."
        raise RunError(" ".join(["There is nothing to compare.", *(notes or [advice])]))
    if single:
        notes.append(f"All questions of {', '.join(single)} share one context; their intervals tell of it alone.")
    return Compared(comparisons, notes)


def shown_arm(arm: Arm, runs: Sequence[Run]) -> str:
    """The method, with the run where there are several."""
    return arm.method if len(runs) == 1 else f"{arm.method} in {arm.run.path}"


def _sides(runs: Sequence[Run], baseline: str | None) -> list[tuple[Arm, Arm]]:
    if baseline is not None or len(runs) == 1:
        chosen = find_arm(runs, baseline or FULL)
        return [(arm, chosen) for run in runs for arm in arms(run) if arm != chosen]
    first, *others = runs
    known = {arm.method: arm for arm in arms(first)}
    sides = [(arm, known[arm.method]) for run in others for arm in arms(run) if arm.method in known]
    if not sides:
        raise RunError(
            f"The runs have no method in common; {first.path} has {', '.join(known) or 'none'}. Pass one of them as "
            "--baseline to compare all others with it."
        )
    return sides


def _of_arm(arm: Arm, baseline: Arm, pairs: list[Pairs], wish: Wish) -> list[Comparison]:
    present = [each for each in pairs if each.rows]
    found = [_comparison(arm, baseline, [each], wish) for each in present]
    if len(found) > 1 and _averaged([each.measure for each in found]):
        found.append(_comparison(arm, baseline, present, wish))
    return found


def _averaged(found: list[Measure]) -> bool:
    """True if a mean over tasks has a meaning: shares of one direction, or one measure."""
    return len(set(found)) == 1 or all(each.percent and each.higher_is_better for each in found)


def _comparison(arm: Arm, baseline: Arm, pairs: list[Pairs], wish: Wish) -> Comparison:
    measure = _measure(pairs[0], wish.measure)
    names = [_measure(each, wish.measure).name for each in pairs]
    ours = [_scores(arm, each.rows, name) for each, name in zip(pairs, names, strict=True)]
    theirs = [_scores(baseline, each.baseline, name) for each, name in zip(pairs, names, strict=True)]
    samples = [
        Clusters.of([one - two for one, two in zip(*scores, strict=True)], shared_contexts(each.rows))
        for each, *scores in zip(pairs, ours, theirs, strict=True)
    ]
    difference = mean_interval(samples, DIFFERENCES if measure.percent else None, wish.bootstrap)
    p = sign_flip_p(samples, wish.bootstrap)
    return Comparison(
        arm,
        baseline,
        tuple(each.task for each in pairs),
        measure,
        examples=sum(len(each.rows) for each in pairs),
        contexts=sum(each.contexts for each in pairs),
        missing=sum(each.missing for each in pairs),
        missing_in_baseline=sum(each.missing_in_baseline for each in pairs),
        score=fmean(map(fmean, ours)),
        baseline_score=fmean(map(fmean, theirs)),
        difference=difference,
        p=p,
        verdict=_verdict(difference, p, measure, wish.bootstrap.level),
    )


def _measure(pairs: Pairs, wanted: str | None) -> Measure:
    """The one that is wanted, or the task's own, which rows have first."""
    name = wanted or pairs.rows[0].measure
    known = measures()
    if name not in known:
        raise RunError(f"There is no measure {name!r}: {closest(name, known)}")
    return known[name]


def _scores(arm: Arm, rows: Sequence[Row], name: str) -> list[float]:
    for row in rows:
        if name not in row.scores:
            raise RunError(
                f"Example {row.example} of {row.task} under {row.method} in {arm.run.path} has no {name}, only "
                f"{', '.join(row.scores) or 'nothing'}."
            )
    return [row.scores[name] for row in rows]


def _verdict(difference: Estimate, p: float, measure: Measure, level: float) -> Verdict:
    if difference.low <= 0 <= difference.high or p > 1 - level + 1e-12:
        return "not told apart"
    return "better" if (difference.mean > 0) == measure.higher_is_better else "worse"
