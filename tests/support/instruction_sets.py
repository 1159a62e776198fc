"""Instruction sets of the native library that this machine runs."""

from __future__ import annotations

import pytest

from winnow.kernels import native

ISAS = native.ISAS
IN_WHOLE_NUMBERS = ("avx2", "avx512", "avx512vnni", "avx512bf16")
"""Those with which many rows in bfloat16 are multiplied in whole numbers of 16 bits, and prompts are laid in panels."""


def available() -> list[str]:
    """The instruction sets that this machine has."""
    if native.library() is None:
        return []
    used, found = native.isa(), []
    for name in ISAS:
        try:
            native.select_isa(name)
        except ValueError:
            continue
        found.append(name)
    native.select_isa(used)
    return found


needs_native = pytest.mark.skipif(not available(), reason="the native library was not built")
