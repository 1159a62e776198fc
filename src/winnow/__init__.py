"""Winnow: long-context language models in a fraction of their KV-cache memory."""

from __future__ import annotations

from winnow.deferred import announce_attention

# Type checkers take it for typing.TYPE_CHECKING. Importing typing takes longer than all that is done here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from winnow.cache import CacheStats, CompressedCache, Context, compress, load_context
    from winnow.composition.method import Method
    from winnow.composition.names import MethodRecord, method, methods
    from winnow.diagnostics import Diagnosis, diagnose
    from winnow.errors import BudgetError, CacheError, MethodError, ModelError, WinnowError
    from winnow.heads import HeadScores
    from winnow.version import __version__
else:
    # Importing torch and transformers takes seconds, so every name is imported when it is first used.
    from importlib import import_module
    from threading import RLock

    # Not all of transformers can be imported by two threads at once.
    _IMPORTING = RLock()

    _HOMES = {
        "BudgetError": "winnow.errors",
        "CacheError": "winnow.errors",
        "CacheStats": "winnow.cache",
        "CompressedCache": "winnow.cache",
        "Context": "winnow.cache",
        "Diagnosis": "winnow.diagnostics",
        "HeadScores": "winnow.heads",
        "Method": "winnow.composition.method",
        "MethodError": "winnow.errors",
        "MethodRecord": "winnow.composition.names",
        "ModelError": "winnow.errors",
        "WinnowError": "winnow.errors",
        "__version__": "winnow.version",
        "compress": "winnow.cache",
        "diagnose": "winnow.diagnostics",
        "load_context": "winnow.cache",
        "method": "winnow.composition.names",
        "methods": "winnow.composition.names",
    }

    def __getattr__(name):
        """A public name, or a submodule such as `winnow.heads`."""
        if name in _HOMES:
            with _IMPORTING:
                value = globals()[name] = getattr(import_module(_HOMES[name]), name)
            return value
        submodule = f"{__name__}.{name}"
        if not name.startswith("_"):
            try:
                return import_module(submodule)
            except ModuleNotFoundError as problem:
                if problem.name != submodule:
                    raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *_HOMES})


__all__ = [
    "BudgetError",
    "CacheError",
    "CacheStats",
    "CompressedCache",
    "Context",
    "Diagnosis",
    "HeadScores",
    "Method",
    "MethodError",
    "MethodRecord",
    "ModelError",
    "WinnowError",
    "__version__",
    "compress",
    "diagnose",
    "load_context",
    "method",
    "methods",
]

announce_attention()
