"""Winnow: long-context language models in a fraction of their KV-cache memory."""

from winnow.cache import CacheStats, CompressedCache, Context, compress, load_context
from winnow.composition.method import Method
from winnow.composition.names import MethodRecord, method, methods
from winnow.diagnostics import Diagnosis, diagnose
from winnow.errors import BudgetError, CacheError, MethodError, ModelError, WinnowError
from winnow.heads import HeadScores
from winnow.version import __version__

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
