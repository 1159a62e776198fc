"""Python files that a command line names with `--plugin`: each is run once, to register methods.

Their classes can be sent to other processes of the same machine, which run the file, too.
"""

from __future__ import annotations

import copyreg
import os
import sys
import traceback
from abc import ABCMeta
from collections.abc import Iterable
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from operator import attrgetter
from pathlib import Path
from types import CodeType
from typing import Any
from zlib import crc32

from winnow.errors import WinnowError


class PluginError(WinnowError):
    """A file given with --plugin that is not there, or fails."""


def run_plugins(paths: Iterable[Path]) -> None:
    """Runs the files in order. Raises PluginError with the line where one of them fails."""
    for path in paths:
        if not os.path.isfile(path):
            raise PluginError(f"--plugin {path}: there is no such file; name a Python file that calls winnow.register.")
        _run(path, _read(path))
        # All parts of methods are of this kind, and no other process can import the module of one.
        copyreg.pickle(ABCMeta, _sent)


def _sent(kind: Any) -> Any:
    """Instructions for pickle: a class of a plugin by its file, any other by its name, as ever."""
    loader = getattr(sys.modules.get(kind.__module__), "__loader__", None)
    if not isinstance(loader, _Loader):
        return kind.__qualname__
    return _received, (os.path.abspath(loader.path), loader.source, kind.__qualname__)


def _received(path: str, source: bytes, name: str) -> Any:
    """The class of a plugin, whose source is run where that was not done yet. Raises PluginError where it fails.

    The source comes with the class: its file may have been saved anew since it was read there.
    """
    module = _module_name(Path(path))
    if module not in sys.modules:
        _run(Path(path), source)
        copyreg.pickle(ABCMeta, _sent)
    return attrgetter(name)(sys.modules[module])


def _module_name(path: Path) -> str:
    return f"winnow_plugin_{crc32(bytes(path.resolve())):08x}"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as problem:
        raise PluginError(f"--plugin {path}: cannot be read ({problem.strerror}).") from None


def _run(path: Path, source: bytes) -> None:
    """As a module, which dataclasses in it need; by the same name again, so that the same file may be run twice."""
    loader = _Loader(_module_name(path), str(path), source)
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[loader.name] = module
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as problem:
        del sys.modules[loader.name]
        kind = "" if isinstance(problem, WinnowError) else f"{type(problem).__name__}: "
        text = problem.msg if isinstance(problem, SyntaxError) else problem
        raise PluginError(f"--plugin {path}{_line(path, problem)}: {kind}{text}") from problem


class _Loader(SourceFileLoader):
    """Runs the source that was read, whatever the file has by now, and leaves no compiled file beside it."""

    def __init__(self, name: str, path: str, source: bytes) -> None:
        super().__init__(name, path)
        self.source = source
        """For `winnow.runs.parts`, too, which tells one plugin's results from another's by it."""

    def get_code(self, fullname: str) -> CodeType:
        """The source, compiled."""
        code: CodeType = self.source_to_code(self.source, self.path)
        return code


def _line(path: Path, problem: BaseException) -> str:
    """The last line of the file that was running; empty where none of it was."""
    lines = [frame.lineno for frame in traceback.extract_tb(problem.__traceback__) if frame.filename == str(path)]
    if isinstance(problem, SyntaxError) and problem.filename == str(path):
        lines.append(problem.lineno)
    return f", line {lines[-1]}" if lines else ""
