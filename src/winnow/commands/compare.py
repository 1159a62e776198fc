"""`winnow compare`: methods of a run, or runs, by paired differences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from winnow.commands.compare_table import show
from winnow.commands.console import messages, output
from winnow.commands.json_lines import json_line
from winnow.commands.options.compare import CompareOptions
from winnow.commands.progress import stage
from winnow.files import prepare_target, write_text
from winnow.runs.compare import Comparison, Wish, compare_runs
from winnow.runs.export.flat import table_text
from winnow.runs.folder import read_run
from winnow.runs.intervals import Bootstrap


def compare(options: CompareOptions) -> None:
    """Prints the comparison, and writes it where the options say so."""
    if options.csv is not None:
        prepare_target(options.csv, overwrite=options.force)
    bootstrap = Bootstrap(options.resamples, options.level, options.seed)
    wish = Wish(options.baseline, options.measure, options.models, bootstrap)
    with stage("Reading the results"):
        runs = [read_run(folder) for folder in options.runs]
    with stage("Comparing"):
        compared = compare_runs(runs, wish)
    entries = [as_entry(each, bootstrap) for each in compared.comparisons]
    if options.as_lines:
        for entry in entries:
            print(json_line(entry), file=output().file)
        for note in compared.notes:
            messages().print(note, markup=False, soft_wrap=True)
    else:
        show(runs, compared, bootstrap)
    if options.csv is not None:
        _write_csv(options.csv, entries)


def as_entry(comparison: Comparison, bootstrap: Bootstrap) -> dict[str, Any]:
    """A comparison as plain values. Scores that are shares are from 0 to 1."""
    arm, baseline = comparison.arm, comparison.baseline
    return {
        "benchmark": arm.run.about.benchmark,
        "protocol": arm.run.about.protocol.get("name"),
        "task": comparison.tasks[0] if len(comparison.tasks) == 1 else None,
        "tasks": list(comparison.tasks),
        "measure": comparison.measure.name,
        "higher_is_better": comparison.measure.higher_is_better,
        "run": str(arm.run.path),
        "model": arm.run.about.model.name,
        "method": arm.method,
        "baseline_run": str(baseline.run.path),
        "baseline_model": baseline.run.about.model.name,
        "baseline": baseline.method,
        "examples": comparison.examples,
        "contexts": comparison.contexts,
        "missing": comparison.missing,
        "missing_in_baseline": comparison.missing_in_baseline,
        "score": comparison.score,
        "baseline_score": comparison.baseline_score,
        "difference": comparison.difference.mean,
        "low": comparison.difference.low,
        "high": comparison.difference.high,
        "p": comparison.p,
        "verdict": comparison.verdict,
        "level": bootstrap.level,
        "resamples": bootstrap.resamples,
        "seed": bootstrap.seed,
    }


def _write_csv(path: Path, entries: Sequence[dict[str, Any]]) -> None:
    rows = ({**entry, "tasks": " ".join(entry["tasks"])} for entry in entries)
    write_text(path, table_text(list(entries[0]), rows))
    messages().print(f"Written: {path}", markup=False, soft_wrap=True)
