"""Facts of a method's parts that its name does not say: the numbers of tables, and the code of others."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import lru_cache
from importlib.metadata import packages_distributions, version
from pathlib import Path

from torch import Tensor

from winnow.composition.contract import is_ours
from winnow.composition.method import Method
from winnow.estimate.journal import fingerprint
from winnow.heads import BudgetCurves, HeadScores, QueryCenters


@lru_cache(maxsize=128)  # asked for with every group of a run
def unsaid(method: Method) -> tuple[str, ...]:
    """Hashes of head scores, budget curves and query centers, and of the code of classes that are not winnow's.

    Nothing for methods without such parts.
    """
    parts = (method.scorer, method.allocator, method.store)
    return tuple(found for part in parts for found in unsaid_of(part))


def unsaid_of(part: object) -> Iterator[str]:
    """The same for one part of a method."""
    if isinstance(part, HeadScores):
        yield fingerprint([part.method, part.heads, part.values.tolist()])
    elif isinstance(part, BudgetCurves):
        yield _hashed("curves", part.ratios)
    elif isinstance(part, QueryCenters):
        yield _hashed("centers", part.mean, part.sizes)
    elif is_dataclass(part):
        yield from (_code(kind) for kind in inspect.getmro(type(part)) if _is_somebody_elses(kind))
        for field in fields(part):
            yield from unsaid_of(getattr(part, field.name))


def _hashed(kind: str, *numbers: Tensor) -> str:
    return fingerprint([kind, *(each.tolist() for each in numbers)])


def _is_somebody_elses(kind: type) -> bool:
    return not is_ours(kind) and kind.__module__.partition(".")[0] not in sys.stdlib_module_names - {"__main__"}


@lru_cache(maxsize=64)
def _code(kind: type) -> str:
    """A hash of the file of a class; of its package's version, or of its own source, where there is no file."""
    return fingerprint(["code", kind.__qualname__, _text(kind)])


def _text(kind: type) -> str:
    """Bytes that are no UTF-8 stand as surrogates, so that no two files have one text."""
    # What a plugin's loader has run; its file may have been saved anew since.
    ran = getattr(getattr(sys.modules.get(kind.__module__), "__loader__", None), "source", None)
    if isinstance(ran, bytes):
        return ran.decode("utf-8", "surrogateescape")
    try:
        file = inspect.getsourcefile(kind)
        if file is None or not Path(file).is_file():
            return inspect.getsource(kind)
        return Path(file).read_bytes().decode("utf-8", "surrogateescape")
    except (OSError, TypeError):
        # Compiled, or typed in.
        found = packages_distributions().get(kind.__module__.partition(".")[0], ())
        return ", ".join(f"{name} {version(name)}" for name in sorted(set(found)))
