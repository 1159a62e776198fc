"""Memory that is given back: by loads and long prompts, on systems that can."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import winnow
from support.families import build, prompt
from winnow import heap
from winnow.bundled import MODEL_PATH
from winnow.evaluate.decoding import prefill
from winnow.models import load_model, loading, open_model

STATUS = Path("/proc/self/status")
CHUNK = 1 << 20
"""Bytes, of which the C library keeps what is freed."""


@pytest.fixture(autouse=True)
def _known_anew() -> Iterator[None]:
    heap._trim.cache_clear()
    yield
    heap._trim.cache_clear()


def own_memory() -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("RssAnon"))
    return 1024 * int(line.split()[1])


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="glibc only")
def test_what_was_freed_between_what_stays_goes_to_the_system() -> None:
    made = [torch.full((CHUNK // 4,), 1.0) for _ in range(128)]
    # As large as those at most: larger ones have memory of their own.
    stays, before = made[::8], own_memory()
    del made
    heap.give_back()
    assert before - own_memory() > 100 * CHUNK
    assert all(bool((each == 1).all()) for each in stays)


def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Any) -> None:
        raise OSError

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    heap.give_back()


def test_loads_and_long_prompts_give_back(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(loading, "give_back", lambda: calls.append("load"))
    monkeypatch.setattr(heap, "give_back", lambda: calls.append("prompt"))
    load_model(open_model(MODEL_PATH), "cpu")
    model = build("llama")
    model.set_attn_implementation("winnow")
    for length in (40, 400):
        winnow.compress(model, prompt(1, length), "snapkv @ 50%")
        prefill(model, prompt(1, length), winnow.CompressedCache(model, winnow.method("snapkv", "50%")))
    assert calls == ["load", "prompt", "prompt"]
    heap.give_back_after(400, torch.device("meta"))
    assert len(calls) == 3
