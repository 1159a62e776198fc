"""Winnow: long-context language models in a fraction of their KV-cache memory."""

from __future__ import annotations

from winnow.deferred import IMPORTING as _IMPORTING
from winnow.deferred import announce_attention

# Type checkers take it for typing.TYPE_CHECKING. Importing typing takes longer than all that is done here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from winnow.cache import (
        CacheStats as CacheStats,
    )
    from winnow.cache import (
        CompressedCache as CompressedCache,
    )
    from winnow.cache import (
        Context as Context,
    )
    from winnow.cache import (
        GraphedDecoder as GraphedDecoder,
    )
    from winnow.cache import (
        compress as compress,
    )
    from winnow.cache import (
        load_context as load_context,
    )
    from winnow.cache import (
        step_graphs as step_graphs,
    )
    from winnow.composition.known import register as register
    from winnow.composition.method import Method as Method
    from winnow.composition.names import MethodRecord as MethodRecord
    from winnow.composition.names import method as method
    from winnow.composition.names import methods as methods
    from winnow.diagnostics import Diagnosis as Diagnosis
    from winnow.diagnostics import diagnose as diagnose
    from winnow.errors import (
        BudgetError as BudgetError,
    )
    from winnow.errors import (
        CacheError as CacheError,
    )
    from winnow.errors import (
        ContextError as ContextError,
    )
    from winnow.errors import (
        FileError as FileError,
    )
    from winnow.errors import (
        GraphError as GraphError,
    )
    from winnow.errors import (
        HeadScoresError as HeadScoresError,
    )
    from winnow.errors import (
        MethodError as MethodError,
    )
    from winnow.errors import (
        ModelError as ModelError,
    )
    from winnow.errors import (
        PromptError as PromptError,
    )
    from winnow.errors import (
        WinnowError as WinnowError,
    )
    from winnow.evaluate import Answer as Answer
    from winnow.evaluate import generate as generate
    from winnow.heads import HeadScores as HeadScores
    from winnow.tasks.prompt_style import PromptStyle as PromptStyle
    from winnow.version import __version__ as __version__
else:
    # Importing torch and transformers takes seconds, so every name is imported when it is first used.
    from importlib import import_module

    _HOMES = {
        "Answer": "winnow.evaluate",
        "BudgetError": "winnow.errors",
        "CacheError": "winnow.errors",
        "CacheStats": "winnow.cache",
        "CompressedCache": "winnow.cache",
        "Context": "winnow.cache",
        "ContextError": "winnow.errors",
        "Diagnosis": "winnow.diagnostics",
        "FileError": "winnow.errors",
        "GraphError": "winnow.errors",
        "GraphedDecoder": "winnow.cache",
        "HeadScores": "winnow.heads",
        "HeadScoresError": "winnow.errors",
        "Method": "winnow.composition.method",
        "MethodError": "winnow.errors",
        "MethodRecord": "winnow.composition.names",
        "ModelError": "winnow.errors",
        "PromptError": "winnow.errors",
        "PromptStyle": "winnow.tasks.prompt_style",
        "WinnowError": "winnow.errors",
        "__version__": "winnow.version",
        "compress": "winnow.cache",
        "diagnose": "winnow.diagnostics",
        "generate": "winnow.evaluate",
        "load_context": "winnow.cache",
        "method": "winnow.composition.names",
        "methods": "winnow.composition.names",
        "register": "winnow.composition.known",
        "step_graphs": "winnow.cache",
    }
    __all__ = list(_HOMES)

    def __getattr__(name):
        """A public name, or a submodule such as `winnow.heads`."""
        if name in _HOMES:
            with _IMPORTING:
                value = globals()[name] = getattr(import_module(_HOMES[name]), name)
            return value
        submodule = f"{__name__}.{name}"
        if not name.startswith("_"):
            try:
                with _IMPORTING:
                    return import_module(submodule)
            except ModuleNotFoundError as problem:
                if problem.name != submodule:
                    raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *_HOMES})


announce_attention()
