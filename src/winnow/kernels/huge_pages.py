"""Huge pages under what every step reads.

A processor looks the address of every page up in tables; in a virtual machine in two sets of them, one under the other.
For pages of 4 KB that are read once a step, that takes a good part of the time of reading them. Linux puts 2 MB on one
page where a program asks for it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

_SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")
_COLLAPSE = 25
"""MADV_COLLAPSE, of Linux 6.1 and later; an unknown advice to earlier ones."""


@cache
def page_bytes() -> int:
    """Size of a huge page; 0 where there are none, or the machine's settings forbid them."""
    try:
        allowed = "[never]" not in (_SETTINGS / "enabled").read_text()
        return int((_SETTINGS / "hpage_pmd_size").read_text()) if allowed else 0
    except (OSError, ValueError):
        return 0


@cache
def _advise() -> Callable[[int, int, int], int]:
    function = ctypes.CDLL(None).madvise
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    result: Callable[[int, int, int], int] = function
    return result


def collapse(address: int, size: int) -> None:
    """Move memory of `size` bytes from `address` on to huge pages, as far as it fills them; contents stay.

    Nothing beyond its own bytes is held for it. Where the system has no room or no such pages all is as before.
    """
    page = page_bytes()
    if page == 0 or size < page:
        return
    first, last = -(-address // page) * page, (address + size) // page * page
    if first < last:
        _advise()(first, last - first, _COLLAPSE)
