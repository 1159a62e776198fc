"""Memory that a container leaves its processes: the limits of their control groups (Linux)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_UNLIMITED = 1 << 60
"""Bytes from which a limit is none: the first version of control groups writes a huge number instead of a word."""


class _Files(NamedTuple):
    """Names of the files of a group."""

    limit: str
    used: str
    cached: str
    """Key in memory.stat: bytes of files that are given up before anybody is killed."""


_FIRST = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_SECOND = _Files("memory.max", "memory.current", "inactive_file")


def container_memory(root: Path = Path("/")) -> int | None:
    """Bytes that this process may still take by the limits of its groups; None without any limit.

    root: of the file system.
    """
    return min((left for group, files in _groups(root) if (left := _left(group, files)) is not None), default=None)


def _groups(root: Path) -> Iterator[tuple[Path, _Files]]:
    """The groups of this process, and all above them: each has a limit of its own."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        group = top / path.lstrip("/")
        for each in (group, *group.parents):
            yield each, _FIRST if controllers else _SECOND
            if each == top:
                break


def _left(group: Path, files: _Files) -> int | None:
    """Bytes that a group leaves; None where it sets no limit, or does not tell."""
    try:
        limit, used = (int((group / name).read_text(encoding="ascii")) for name in (files.limit, files.used))
        stat = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
        return None if limit >= _UNLIMITED else max(0, limit - used + int(stat.get(files.cached, 0)))
    except (OSError, ValueError):
        return None  # "max" is no number, too
