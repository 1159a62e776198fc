"""The numbers of a section as plain values, for `results.json`; docs/report.md describes them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from winnow.report.page.content import Content
from winnow.report.page.costs import Cost
from winnow.report.page.heatmaps import Heatmap
from winnow.report.page.predictions import Predictions
from winnow.report.page.results import Result
from winnow.report.page.sections import Source

Plain = dict[str, Any]


def section_data(content: Content) -> Plain:
    """All of it. Methods and slices are told by their places in the lists of them."""
    slices = {part: index for index, part in enumerate(content.slices)}
    methods = {method: index for index, method in enumerate(content.methods)}
    about = content.section.about

    def place(each: Result | Cost) -> Plain:
        return {"slice": slices[each.slice], "method": methods[each.method]}

    return {
        "number": content.number,
        "model": asdict(about.model),
        "benchmark": about.benchmark,
        "protocol": about.protocol,
        "request": about.request,
        "machines": content.section.environments,
        "runs": [_run(source) for source in content.section.sources],
        "methods": [method._asdict() for method in content.methods],
        "slices": [part._asdict() for part in content.slices],
        "quantities": [quantity._asdict() for quantity in content.quantities],
        "results": [place(each) | _result(each) for each in content.results],
        "costs": [place(each) | _cost(each) for each in content.costs],
        "heatmaps": [{"method": methods[each.method]} | _heatmap(each) for each in content.heatmaps],
        "headmaps": [
            {"method": methods[each.method], "shares": each.shares, "examples": each.examples}
            for each in content.headmaps
        ],
        "predictions": [_predictions(each) for each in content.predictions],
        "notes": content.notes,
    }


def _run(source: Source) -> Plain:
    return {
        "number": source.number,
        "path": source.path,
        "command": source.about.command,
        "started": source.about.started,
        "machines": source.machines,
        "rows": source.rows,
    }


def _result(result: Result) -> Plain:
    return {
        "quantity": result.quantity,
        **result.estimate._asdict(),
        "examples": result.examples,
        "most": result.most,
        **asdict(result.holding),
        "runs": result.runs,
    }


def _cost(cost: Cost) -> Plain:
    return {
        "machine": cost.machine,
        "examples": cost.examples,
        "most": cost.most,
        "prompt_tokens": cost.prompt_tokens,
        "prefill_seconds": cost.prefill_seconds,
        "compress_seconds": cost.compress_seconds,
        "token_milliseconds": cost.token_milliseconds,
        **asdict(cost.holding),
        "runs": cost.runs,
    }


def _heatmap(heatmap: Heatmap) -> Plain:
    return {
        "task": heatmap.task,
        "lengths": heatmap.lengths,
        "depths": heatmap.depths,
        "means": [[square and square.mean for square in row] for row in heatmap.squares],
        "examples": [[square.examples if square else 0 for square in row] for row in heatmap.squares],
    }


def _predictions(predictions: Predictions) -> Plain:
    return {
        "task": predictions.task,
        "measure": predictions.measure,
        "examples": len(predictions.examples),
        "most": predictions.most,
    }
