"""Memory that a plan reads lies on huge pages as far as it fills them, and is what it was."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from support.instruction_sets import needs_native
from winnow.kernels import AttentionSpec, DecodePlan, DenseBlock, TailSegments
from winnow.kernels.huge_pages import collapse, page_bytes

MAPS = Path("/proc/self/smaps")
needs_pages = pytest.mark.skipif(not page_bytes() or not MAPS.exists(), reason="no huge pages here")


def on_huge_pages(address: int) -> int:
    """Bytes on huge pages of the mapping that holds an address."""
    found = 0
    inside = False
    for line in MAPS.read_text().splitlines():
        bounds = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if bounds:
            inside = int(bounds[1], 16) <= address < int(bounds[2], 16)
        elif inside and line.startswith("AnonHugePages:"):
            found += 1024 * int(line.split()[1])
    return found


@needs_native
@needs_pages
def test_a_plan_puts_its_blocks_on_huge_pages() -> None:
    heads, slots, dim = 2, 8 * page_bytes() // (2 * 64 * 4), 64
    keys, values = torch.randn(2, heads * slots, dim)
    keys, values = keys.clone(), values.clone()
    copies = keys.clone(), values.clone()
    block = DenseBlock(keys, values, torch.tensor([0, slots, 2 * slots]))
    empty = torch.empty(1, heads, 0, dim)
    DecodePlan([block], TailSegments(empty, empty, torch.zeros(1, dtype=torch.int64)), AttentionSpec(0.125))
    middle = keys.data_ptr() + keys.nbytes // 2
    if not on_huge_pages(middle):
        pytest.skip("this kernel collapses no memory, or has no room")
    assert on_huge_pages(middle) >= keys.nbytes - 2 * page_bytes()
    assert torch.equal(keys, copies[0])
    assert torch.equal(values, copies[1])


@needs_pages
def test_memory_that_fills_no_page_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, ...]] = []
    monkeypatch.setattr("winnow.kernels.huge_pages._advise", lambda: lambda *sizes: calls.append(sizes))
    page = page_bytes()
    collapse(64, page)
    collapse(page - 64, page + 63)
    assert not calls
    collapse(page - 64, 2 * page + 64)
    assert calls == [(page, 2 * page, 25)]
