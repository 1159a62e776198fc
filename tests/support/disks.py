"""Disks that are full or read-only, where the tests may mount them."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class Disk:
    """A small file system of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        _mount("-t", "tmpfs", "-o", "size=1m", "winnow-test", str(folder))

    def fill(self, left: int) -> None:
        """Takes all room but so many bytes, rounded down to pages."""
        filler = self.folder / "filler"
        filler.unlink(missing_ok=True)
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"0" * 4096)
            except OSError:
                file.truncate(file.tell() // 4096 * 4096 - left // 4096 * 4096)

    def make_room(self) -> None:
        (self.folder / "filler").unlink()

    def allow_writing(self, allowed: bool) -> None:
        _mount("-o", f"remount,{'rw' if allowed else 'ro'},size=1m", str(self.folder))


@contextmanager
def small_disk(folder: Path) -> Iterator[Disk]:
    """A disk at a folder; skips the test where nothing may be mounted."""
    folder.mkdir()
    try:
        disk = Disk(folder)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no file system may be mounted here")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Inside, no file of this process can grow beyond a number of bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)
