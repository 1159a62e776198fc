"""The attention function "winnow", known to transformers as soon as transformers is there, without importing it.

transformers looks up what attends and what masks in two registries, each in a module of its own. Right after such a
module was loaded, a placeholder is put into its registry. Its first call imports `winnow.cache`, which registers the
functions themselves. Nothing else is imported in between: two threads could wait for each other's half-loaded modules.
"""

from __future__ import annotations

import sys
from importlib import import_module
from threading import RLock

# As in winnow itself, without importing typing.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

IMPLEMENTATION = "winnow"

IMPORTING = RLock()
"""Held while something of winnow is imported on first use: not all of it, nor of transformers, can be by two threads at
once."""

_REGISTRIES = {
    "transformers.modeling_utils": ("AttentionInterface", "winnow_attention"),
    "transformers.masking_utils": ("AttentionMaskInterface", "winnow_mask"),
}
"""Modules with their registries, and the functions of `winnow.cache.attention` that belong there."""


def announce_attention() -> None:
    """Makes `model.set_attn_implementation("winnow")` work, whether transformers is imported before or after this."""
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    for name in _REGISTRIES.keys() & sys.modules.keys():
        # Another thread may be loading it right now; this waits until it is done.
        finder.announce(import_module(name))


def _placeholder(function: str) -> Callable[..., Any]:
    def call(*given: Any, **named: Any) -> Any:
        with IMPORTING:
            home = import_module("winnow.cache.attention")
        return getattr(home, function)(*given, **named)

    return call


class _Finder:
    """Lets others find the modules of the registries, and hears when they are loaded; leaves after the last one."""

    def __init__(self) -> None:
        self._pending = set(_REGISTRIES)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As `importlib.abc.MetaPathFinder` has it."""
        if fullname not in self._pending:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)  # type: ignore[assignment]
        return spec

    def announce(self, module: ModuleType) -> None:
        """Puts a placeholder into the registry of a loaded module."""
        registry, function = _REGISTRIES[module.__name__]
        getattr(module, registry).register(IMPLEMENTATION, _placeholder(function))
        self._pending.discard(module.__name__)
        if not self._pending and self in sys.meta_path:
            sys.meta_path.remove(self)


class _Loader:
    """Another loader, in whose place this one stands until the module is executed; as `importlib.abc.Loader`."""

    def __init__(self, loader: Loader, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The other loader's module."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Steps aside, and announces the module when it is loaded."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._finder.announce(module)
