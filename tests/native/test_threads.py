"""Threads that the native library works on: those of torch's OpenMP, or workers of its own."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from winnow.kernels import native
from winnow.kernels.openmp import lend_threads

LENT = torch.backends.openmp.is_available() and hasattr(ctypes.CDLL(torch._C.__file__), "GOMP_parallel")
pytestmark = [
    pytest.mark.skipif(native.library() is None, reason="no native library"),
    pytest.mark.skipif(not LENT, reason="torch's OpenMP lends no threads"),
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted where Linux lists them"),
]

PROGRAM = """
import hashlib, os, sys, torch
from winnow.kernels import AttentionSpec, DecodePlan, DenseBlock, TailSegments, native
from winnow.kernels.openmp import lend_threads

def decoded():
    generator = torch.Generator().manual_seed(0)
    keys, values, query = (torch.randn(n, 64, generator=generator) for n in (12_000, 12_000, 4))
    prefix = DenseBlock(keys, values, torch.tensor([0, 9_000, 12_000]))
    empty = torch.empty(1, 2, 0, 64)
    plan = DecodePlan([prefix], TailSegments(empty, empty, torch.zeros(1, dtype=torch.int64)), AttentionSpec(0.125))
    return hashlib.sha256(plan.run(query.view(1, 4, 1, 64)).numpy().tobytes()).hexdigest()

def threads():
    return len(os.listdir("/proc/self/task"))

torch.set_num_threads(3)
native.library()
torch.randn(2000, 2000).exp_()  # torch's own threads are there from here on
before = threads()
found = {decoded() for _ in range(20)}
print(*found, threads() - before)
if sys.argv[1:] == ["fork"]:
    child = os.fork()
    if not child:
        lend_threads(native.loaded_library())
        os._exit(0 if {decoded()} == found else 1)
    print(os.waitpid(child, 0)[1])
"""


def ran(environment: dict[str, str], *arguments: str) -> list[str]:
    """Words that the program prints: hashes of its outputs, threads that were added, and the status of its child."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.split()


@pytest.fixture
def environment() -> dict[str, str]:
    """This process's own, with room for several threads."""
    return {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "WINNOW_THREADS")}


def test_torchs_threads_are_lent_and_give_what_the_pools_give(environment):
    lent, own = ran(environment), ran({**environment, "WINNOW_THREADS": "pool"})
    assert lent[0] == own[0]
    assert (lent[1:], own[1:]) == (["0"], ["2"])


def test_a_child_of_fork_does_not_wait_for_threads_that_it_has_not(environment):
    assert ran(environment, "fork")[1:] == ["0", "0"]


def test_threads_stay_the_librarys_own_where_that_is_asked_for(monkeypatch):
    monkeypatch.setenv("WINNOW_THREADS", "pool")
    assert not lend_threads(native.loaded_library())
    monkeypatch.setenv("WINNOW_THREADS", "")
    assert lend_threads(native.loaded_library())


def test_threads_stay_the_librarys_own_without_openmp(monkeypatch):
    monkeypatch.delenv("WINNOW_THREADS", raising=False)
    monkeypatch.setattr(torch.backends.openmp, "is_available", lambda: False)
    assert not lend_threads(native.loaded_library())
