"""Winnow: long-context language models in a fraction of their KV-cache memory."""

from importlib.metadata import PackageNotFoundError, version

from winnow.cache import CacheStats, CompressedCache, Context, compress, load_context
from winnow.diagnose import Diagnosis, diagnose
from winnow.errors import BudgetError, CacheError, MethodError, ModelError, WinnowError
from winnow.heads import HeadScores
from winnow.method import Method
from winnow.presets import MethodRecord, method, methods

try:
    __version__ = version("winnow-kv")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

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
    "compress",
    "diagnose",
    "load_context",
    "method",
    "methods",
]
