"""The file of a journal: one process appends to it, line by line, and a line is there whole or not at all."""

from __future__ import annotations

import os
import stat
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from winnow.estimate.errors import JournalError

try:
    import fcntl
except ImportError:  # Windows: nothing keeps a second process away there.
    fcntl = None  # type: ignore[assignment]

LONGEST = 2**24
"""Bytes of a line, at most: no record that is worth keeping comes near."""

_open_here: weakref.WeakValueDictionary[tuple[int, int], JournalFile] = weakref.WeakValueDictionary()
"""Files of this process by device and inode."""


class JournalFile:
    """A regular file that this process alone appends to, from its opening on until it is closed or nobody has it."""

    def __init__(self, path: Path) -> None:
        """Opens the file, or makes it. Raises JournalError where that cannot be, or another process has it.

        Within a process the last one to open a file has it: a notebook's cell that was interrupted can run again.
        """
        self.path = path
        _check_regular(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0), 0o666)
        except OSError as problem:
            raise cannot_write(path, problem) from None
        self._closing = weakref.finalize(self, os.close, self._descriptor)
        self._process = os.getpid()
        # Nobody closes the descriptor under an append of another thread: the next file to be opened would get its line.
        self._turn = threading.RLock()
        facts = os.fstat(self._descriptor)
        former = _open_here.get((facts.st_dev, facts.st_ino))
        if former is not None and former._process == self._process:
            former.close()
        _lock(path, self._descriptor, facts)
        _open_here[facts.st_dev, facts.st_ino] = self
        # Not what it was before: an append of the former's may have been waited for.
        self._end = os.fstat(self._descriptor).st_size
        self._left = 0
        """Bytes behind the end that an append may have left there, at most: one that failed, or was interrupted."""

    def close(self) -> None:
        """Lets others write the file, when an append in flight is done."""
        with self._turn:
            self._closing()

    def cut(self, end: int) -> None:
        """Drops what lies behind a byte, of what was there at the opening. Raises JournalError."""
        self._check_process()
        try:
            with self._turn:
                self._check_unchanged()
                if end < self._end:
                    os.ftruncate(self._descriptor, end)
                    self._end = end
        except OSError as problem:
            raise cannot_write(self.path, problem) from None

    def append(self, line: bytes) -> None:
        """Writes a line, which is on the disk when this returns. Raises JournalError, and then nothing was written."""
        self._check_process()
        if len(line) > LONGEST:
            raise JournalError(f"Cannot write {self.path}: a record of {len(line):,} bytes is too long for a journal.")
        with self._turn:
            if not self._closing.alive:
                raise JournalError(f"{self.path} was opened again by this process: append to the later one.")
            try:
                self._check_unchanged()
                self._take_back()
                self._left = len(line)
                _write(self._descriptor, line)
                os.fsync(self._descriptor)
            except OSError as problem:
                # The beginning of a line would spoil the next one.
                with suppress(OSError):
                    self._take_back()
                raise cannot_write(self.path, problem) from None
            self._end, self._left = self._end + len(line), 0

    def _check_process(self) -> None:
        """A fork has the descriptor, and its lock, too, but does not hear of what is appended by the other."""
        if os.getpid() != self._process:
            raise JournalError(
                f"{self.path} is being written by process {self._process}, from which this one was forked: append to "
                "it there, or open another journal here."
            )

    def _check_unchanged(self) -> None:
        facts = os.fstat(self._descriptor)
        if not facts.st_nlink:
            raise JournalError(f"{self.path} was deleted while it was written: repeat the command to start over.")
        if facts.st_size < self._end:
            raise JournalError(f"{self.path} was made shorter by another program: repeat the command to resume it.")
        if facts.st_size > self._end + self._left:
            # On a file system without locks nothing else keeps two processes apart.
            raise JournalError(
                f"{self.path} was made longer by another program: let that one finish, and repeat the command to "
                "resume it."
            )

    def _take_back(self) -> None:
        """Drops what an unfinished append left, unless others have written behind it."""
        if self._left and os.fstat(self._descriptor).st_size <= self._end + self._left:
            os.ftruncate(self._descriptor, self._end)
            self._left = 0


def raw_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file with their line breaks, which the last one may lack.

    None where there is no file. Raises JournalError where it cannot be read, and for a line that is too long.
    """
    _check_regular(path)
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(LONGEST + 1):
                number += 1
                if len(line) > LONGEST:
                    raise JournalError(f"{path}, line {number}: this line is too long for a journal. {REMEDY}")
                yield line
    except FileNotFoundError:
        return
    except OSError as problem:
        raise JournalError(f"Cannot read {path}: {problem.strerror}.") from None


REMEDY = "Delete that line and its work is done again, or delete the file to start over."
"""The end of every text about a line that cannot be used."""


def cannot_write(path: Path, problem: OSError) -> JournalError:
    """The error of a journal that cannot be written."""
    return JournalError(f"Cannot write {path}: {problem.strerror}.")


def _check_regular(path: Path) -> None:
    """Devices, pipes and folders are no journals; opening some of them would already do something."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return
    if not stat.S_ISREG(mode):
        raise JournalError(f"{path} cannot hold a journal, because it is not a regular file; give another name.")


def _write(descriptor: int, line: bytes) -> None:
    """All of the line: a full disk takes a part of it before it says so."""
    left = memoryview(line)
    while left:
        left = left[os.write(descriptor, left) :]


def _lock(path: Path, descriptor: int, facts: os.stat_result) -> None:
    """The lock ends with the process, however that ends."""
    if fcntl is None:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise JournalError(
            f"{path} is being written by another process{_holder(facts)}: wait for it, or give another name for the "
            "output or the journal."
        ) from None
    except OSError:
        # A file system without locks, as some network ones: the journal is as good as it was without them.
        return


def _holder(facts: os.stat_result) -> str:
    """The process that holds the lock, where the system tells: " (process 1234)"."""
    try:
        locks = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return ""
    for lock in locks:
        fields = lock.split()
        if "FLOCK" in fields and "->" not in fields and fields[5].rpartition(":")[2] == str(facts.st_ino):
            return f" (process {fields[4]})" if int(fields[4]) > 0 else ""
    return ""
