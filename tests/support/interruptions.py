"""Errors and interrupts at any place of a forward pass: in any module of a model, at any line of the cache's code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import winnow.cache

CODE = str(Path(winnow.cache.__file__).parent)


class Halt(BaseException):
    """An interrupt, as Ctrl-C is one: no `except Exception` sees it."""


class Places:
    """Counts places that are passed, and raises at one of them."""

    def __init__(self, at: int | None = None, error: type[BaseException] = Halt) -> None:
        self.passed = 0
        self._at = at
        self._error = error

    def reach(self) -> None:
        self.passed += 1
        if self._at == self.passed - 1:
            raise self._error("at a place of the test's choice")


@contextmanager
def modules_halting(model: Any, places: Places) -> Iterator[None]:
    """Within, every module of a model is a place, before and after its work."""
    hooks = []
    for module in model.modules():
        hooks.append(module.register_forward_pre_hook(lambda *_: places.reach()))
        hooks.append(module.register_forward_hook(lambda *_: places.reach()))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def lines_halting(places: Places, code: tuple[str, ...] = (CODE,)) -> Iterator[None]:
    """Within, every line of `winnow.cache`, or of some other files, is a place, where an interrupt may come."""

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(code):
            return None
        if event == "line":
            places.reach()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


@contextmanager
def halting(model: Any, places: Places, lines: bool) -> Iterator[None]:
    """Within, lines of the cache's code are places, or modules of the model."""
    with lines_halting(places) if lines else modules_halting(model, places):
        yield
