"""Memory that a container leaves its processes: the limits of their control groups (Linux)."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from winnow.control_groups import groups

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
    found = (_left(group.folder, _SECOND if group.second else _FIRST) for group in groups("memory", root))
    return min((left for left in found if left is not None), default=None)


def _left(group: Path, files: _Files) -> int | None:
    """Bytes that a group leaves; None where it sets no limit, or does not tell."""
    try:
        limit, used = (int((group / name).read_text(encoding="ascii")) for name in (files.limit, files.used))
        stat = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
        return None if limit >= _UNLIMITED else max(0, limit - used + int(stat.get(files.cached, 0)))
    except (OSError, ValueError):
        return None  # "max" is no number, too
