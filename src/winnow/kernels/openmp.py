"""Threads of torch's OpenMP, lent to the native library."""

from __future__ import annotations

import ctypes
import os

import torch

from winnow.kernels.environment import chosen

POOL = "pool"
"""Value of WINNOW_THREADS with which the library keeps to workers of its own."""

_STARTED = os.getpid()
"""Process whose OpenMP has the threads; a child of its fork has none of them."""


def lend_threads(library: ctypes.CDLL) -> bool:
    """Has the library work on the threads with which torch computes; False where there are none to lend.

    They wait for work without sleeping, so that they are there when a model's products are done, and a worker of
    another pool would wait for their cores instead. torch may have been built without OpenMP, or with one that lacks
    the functions that GCC calls; in a child of a fork its threads are gone.
    """
    asked = chosen("WINNOW_THREADS", [POOL], "the library works on torch's threads where there are any")
    if asked == POOL or os.getpid() != _STARTED or not torch.backends.openmp.is_available():
        return False
    try:
        # A handle finds what dependencies export: of several OpenMPs in a process the one that torch uses.
        host = ctypes.CDLL(torch._C.__file__)
        team, number = host.GOMP_parallel, host.omp_get_thread_num
    except (OSError, AttributeError):
        return False
    library.winnow_lend_threads(ctypes.cast(team, ctypes.c_void_p), ctypes.cast(number, ctypes.c_void_p))
    return True
