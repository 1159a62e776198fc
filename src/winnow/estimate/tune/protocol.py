"""The record of a choice, as plain JSON values."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from winnow.errors import HeadScoresError
from winnow.estimate.tune.choice import Point, Verdict
from winnow.estimate.tune.knobs import KNOBS, Tunable
from winnow.version import __version__

VERSION = 1


def digest(path: Path) -> str:
    """SHA-256 of a file, as sha256sum prints it. Raises HeadScoresError where it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as problem:
        raise HeadScoresError(f"Cannot read {path}: {problem.strerror}.") from None


def tuning_record(
    method: Tunable, name: str, points: Sequence[Point], chosen: Point, verdict: Verdict, protocol: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything about a choice. name: of the method with its chosen value, as `winnow.method` reads it."""
    knob = KNOBS[method]
    return {
        "winnow_tuning": VERSION,
        "method": name,
        "parameter": knob.parameter,
        "value": chosen.value,
        "default": knob.default,
        "curve": [_point(point) for point in points],
        "test": {
            "chosen": _point(verdict.chosen),
            "default": _point(verdict.default),
            "told_from_default": verdict.clear,
        },
        "protocol": {**protocol, "versions": _versions()},
    }


def _point(point: Point) -> dict[str, Any]:
    return {
        "value": point.value,
        "questions": point.questions,
        "accuracy": point.accuracy,
        "interval": list(point.interval),
        "budgets": {
            budget: {"right": tally.right, "accuracy": tally.accuracy, "interval": list(tally.interval)}
            for budget, tally in point.budgets.items()
        },
    }


def _versions() -> dict[str, str]:
    return {
        "winnow": __version__,
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }
