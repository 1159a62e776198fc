"""The instruction set that serves a process which asks for none: the best of its processor, as Linux tells of it."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

import pytest

from support.instruction_sets import needs_native
from winnow.kernels import native

TOLD = Path("/proc/cpuinfo")
NEEDED = {
    "avx2": "avx2 fma bmi2 popcnt",
    "avx512": "avx512f avx512bw avx512dq avx512vl",
    "avx512vnni": "avx512_vnni",
    "avx512bf16": "avx512_bf16 avx512vbmi avx512_vbmi2",
    "amx": "amx_tile amx_bf16 amx_int8",
}
"""Flags that an instruction set needs besides those of the ones before it."""
ZEN4 = 25
"""The family of AMD's processors that have AVX-512 with BF16 for the first time."""


def best_of(text: str) -> str:
    """The instruction set for the first processor that a text like /proc/cpuinfo tells of."""
    told = dict(re.findall(r"^([^\n:\t]+)\t*: ?(.*)$", text.partition("\n\n")[0], re.MULTILINE))
    flags, best = set(told["flags"].split()), "portable"
    for name, needed in NEEDED.items():
        if not flags.issuperset(needed.split()):
            break
        best = name
    if best == "avx512bf16" and told["vendor_id"] == "AuthenticAMD":
        return "zen4" if int(told["cpu family"]) == ZEN4 else "zen5"
    return best


@needs_native
@pytest.mark.skipif(platform.machine() != "x86_64" or not TOLD.exists(), reason="Linux on x86-64 tells flags")
@pytest.mark.skipif("WINNOW_ISA" in os.environ, reason="another one is asked for")
def test_the_best_of_the_processor_is_built_and_chosen() -> None:
    best = best_of(TOLD.read_text())
    # The system may keep tiles to itself.
    assert native.isa() in ({"amx", "avx512bf16"} if best == "amx" else {best})


@pytest.mark.parametrize(
    ("vendor", "family", "flags", "expected"),
    [
        ("AuthenticAMD", 25, "avx2 fma bmi2 popcnt", "avx2"),
        ("AuthenticAMD", 25, " ".join(list(NEEDED.values())[:4]), "zen4"),
        ("AuthenticAMD", 26, " ".join(list(NEEDED.values())[:4]), "zen5"),
        ("GenuineIntel", 6, " ".join(NEEDED.values()), "amx"),
        ("GenuineIntel", 6, "sse2", "portable"),
    ],
)
def test_flags_are_read_as_linux_writes_them(vendor: str, family: int, flags: str, expected: str) -> None:
    one = f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\npower management:\nflags\t\t: {flags}\n"
    assert best_of(f"{one}\nprocessor\t: 1\nflags\t\t: none\n") == expected
