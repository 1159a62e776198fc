"""Libraries that some metrics are computed with; all of them are in the extra "eval"."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from winnow.metrics.base import MetricError

PACKAGES = {"jieba": "jieba", "math_verify": "math-verify", "rapidfuzz": "rapidfuzz", "rouge": "rouge"}
"""Names under which packages are installed, by the names under which they are imported."""


def library(name: str) -> ModuleType:
    """The module of a name. Raises MetricError where it is not installed."""
    check_libraries([name])
    return import_module(name)


def check_libraries(names: Iterable[str]) -> None:
    """Raises MetricError, naming the extra, where one of these modules is not installed."""
    missing = [PACKAGES[name.partition(".")[0]] for name in names if find_spec(name.partition(".")[0]) is None]
    if missing:
        raise MetricError(f"This metric needs {' and '.join(missing)}: pip install 'winnow-kv[eval]'.")
