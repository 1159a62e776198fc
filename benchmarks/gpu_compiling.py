"""Kernels compiled ahead of time, as for GPUs that are not here: launches end where their kernel is compiled."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction


class Absent:
    """A GPU that kernels can be compiled for and not launched on, as Triton asks drivers."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_target(self) -> GPUTarget:
        """The GPU to compile for."""
        return GPUTarget("cuda", self._capability, 32)

    def get_current_device(self) -> int:
        """A number under which Triton keeps its kernels: one for every capability."""
        return self._capability

    def get_current_stream(self, device: int) -> int:
        """A number that nobody looks at."""
        return 0


class Launched(NamedTuple):
    """A launch that was not made."""

    compiled: Any
    arguments: dict[str, Any]
    """By name, as far as they were named."""


class Usage(NamedTuple):
    """Means of a thread."""

    registers: int
    stack: int
    """Bytes; more than 0 where registers are spilled."""


@contextmanager
def compiled_only(capability: int) -> Iterator[list[Launched]]:
    """Launches end once their kernel is compiled; the list has those since the block was entered."""
    found: list[Launched] = []
    run = JITFunction.run

    def compile_only(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        compiled = run(kernel, *args, grid=grid, warmup=True, **kwargs)
        found.append(Launched(compiled, kwargs))
        return compiled

    before = driver._active
    driver.set_active(Absent(capability))
    try:
        with mock.patch.object(JITFunction, "run", compile_only):
            yield found
    finally:
        driver.set_active(before)


def usage(compiled: Any) -> Usage:
    """Registers and stack of a compiled kernel, as its binary says."""
    with tempfile.NamedTemporaryFile("wb", suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", told)
    assert found is not None, told
    return Usage(int(found[1]), int(found[2]))
