"""Threads for which a container leaves this process time, by the quotas of its control groups (Linux)."""

from __future__ import annotations

import os
from math import ceil
from pathlib import Path

from winnow.control_groups import Group, groups


def container_threads(root: Path = Path("/")) -> int | None:
    """Threads that quotas let compute all the time; None where each processor may have one.

    A quota of one and a half takes two. With more, all of them would stop for the rest of a period, a tenth of a second
    as a rule, once they have used up the time. root: of the file system.
    """
    quotas = [quota for group in groups("cpu", root) if (quota := _quota(group)) is not None]
    threads = max(1, ceil(min(quotas))) if quotas else None
    return threads if threads is not None and threads < _processors() else None


def _processors() -> int:
    """Processors on which this process may run."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1


def _quota(group: Group) -> float | None:
    """Processors' time that a group has; None where it sets no limit, or does not tell."""
    try:
        if group.second:
            quota, period = (group.folder / "cpu.max").read_text(encoding="ascii").split()
        else:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            quota, period = ((group.folder / name).read_text(encoding="ascii") for name in names)
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None  # "max" is no number, too
