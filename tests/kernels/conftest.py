"""Instruction sets, threads and libraries for the tests of kernels."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from support.instruction_sets import ISAS, available
from winnow.kernels import native


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every instruction set that this machine has, in turn."""
    if request.param not in available():
        pytest.skip(f"no {request.param} here")
    used = native.isa()
    native.select_isa(request.param)
    yield request.param
    native.select_isa(used)


@pytest.fixture
def isas() -> Iterator[list[str]]:
    """The instruction sets that this machine has; restores the one in use."""
    found = available()
    used = native.isa() if found else ""
    yield found
    if found:
        native.select_isa(used)


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh memory is NaN, so that outputs never written show."""
    empty_like = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda like: empty_like(like).fill_(math.nan))


@pytest.fixture
def threads() -> Iterator[None]:
    """Restores the thread count."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def unloaded() -> Iterator[None]:
    """The library is looked for anew, in the test and after it."""
    native.library.cache_clear()
    yield
    native.library.cache_clear()
