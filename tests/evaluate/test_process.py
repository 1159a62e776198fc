"""The peak of a process's memory, against what the kernel says elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from winnow.evaluate import process

STATUS = Path("/proc/self/status")


@pytest.mark.skipif(not STATUS.exists(), reason="needs /proc")
def test_the_unit_is_bytes():
    peak = process.peak_memory()
    (line,) = [line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM")]
    highest = 1024 * int(line.split()[1])
    assert peak is not None
    assert 0.9 * highest <= peak < 100 * highest


def test_a_system_that_does_not_tell(monkeypatch):
    monkeypatch.setattr(process, "resource", None)
    assert process.peak_memory() is None
