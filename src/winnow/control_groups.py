"""Control groups of this process (Linux), by which containers limit what it takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Group(NamedTuple):
    """A group that may set limits."""

    folder: Path
    """May be absent: containers see the folders of groups only from their own on."""
    second: bool
    """True if its files are those of the second version of control groups."""


def groups(controller: str, root: Path = Path("/")) -> Iterator[Group]:
    """The groups of this process, and all above them, each of which has limits of its own.

    controller: of the first version, by its name there, such as memory. root: of the file system.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        _, _, named = line.partition(":")
        controllers, found, path = named.partition(":")
        if not found or (controllers and controller not in controllers.split(",")):
            continue
        top = root / "sys/fs/cgroup" / (controller if controllers else "")
        folder = top / path.lstrip("/")
        for each in (folder, *folder.parents):
            yield Group(each, second=not controllers)
            if each == top:
                break
