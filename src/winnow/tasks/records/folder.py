"""Files of a benchmark: a folder, a zip file, a folder with zip files, or a single file."""

from __future__ import annotations

import lzma
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple, NoReturn

from winnow.errors import FileError
from winnow.files import LARGEST_TEXT, reading
from winnow.tasks.benchmark import BenchmarkError, Request
from winnow.tasks.records.hub import HUB, OnHub, download

SUFFIXES = (".jsonl", ".json", ".parquet")
"""In the order in which one is taken where a task has several."""

_DAMAGED = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, OSError, RuntimeError, ValueError, EOFError)
"""Errors of a zip file that cannot be read: damaged, encrypted, or of an unknown version or compression."""

_SPLIT_PART = re.compile(r"(-\d+-of-\d+)?\Z")
_PART = re.compile(r"(?P<before>.*)-(?P<number>\d{1,9})-of-(?P<count>\d{1,6})\.\w+", re.DOTALL)


class Folder(NamedTuple):
    """Files by their path in it."""

    path: Path
    files: Mapping[str, Callable[[], bytes]]

    def of_task(self, name: str) -> list[str]:
        """Files of a task, by their name or by that of a folder around them; none if there are none.

        Raises BenchmarkError where different folders have a file of that name, and where a part of one is missing.
        """
        for suffix in SUFFIXES:
            named = [path for path in self.files if path.endswith(suffix) and _is_named(path, name)]
            if len({PurePosixPath(path).parent for path in named}) > 1:
                raise BenchmarkError(
                    f"{self.path} has {name} more than once: {', '.join(named)}. Give a folder with one of them."
                )
            if named:
                return self._whole(named)
        for suffix in SUFFIXES:
            around = [path for path in self.files if path.endswith(suffix) and name in PurePosixPath(path).parts[:-1]]
            if around:
                # The hub keeps splits beside each other.
                return self._whole([path for path in around if "test" in path.split(name, 1)[1]] or around)
        return []

    def all_files(self) -> list[str]:
        """Files of one kind, the first of `SUFFIXES` that there is."""
        found = ([path for path in self.files if path.endswith(suffix)] for suffix in SUFFIXES)
        return self._whole(next((paths for paths in found if paths), []))

    def _whole(self, paths: list[str]) -> list[str]:
        """The same paths. Raises BenchmarkError where one of a file in parts is missing."""
        parts: dict[tuple[str, int], set[int]] = {}
        for path in paths:
            if found := _PART.fullmatch(path):
                parts.setdefault((found["before"], int(found["count"])), set()).add(int(found["number"]))
        for (before, count), numbers in parts.items():
            # The hub counts from 0; others from 1.
            first = 1 if count in numbers and 0 not in numbers else 0
            missing = [number for number in range(first, first + count) if number not in numbers]
            if missing:
                more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
                raise BenchmarkError(
                    f"{self.path} lacks {before}-{missing[0]:05}-of-{count:05}{more}: fetch all parts of the file."
                )
        return paths


def open_folder(request: Request, benchmark: str, content: str, hub: OnHub | None = None) -> Folder:
    """Files of a request's data.

    content: the files that belong there, for the error. Raises BenchmarkError where there are none.
    """
    if request.data is None:
        fetched = f", or --data {HUB} to fetch them" if hub else ""
        raise BenchmarkError(f"{benchmark} needs its texts: give --data with {content}{fetched}.")
    path = request.data
    if hub and str(path) == HUB and not path.exists():
        path = download(hub, benchmark, content)
    if not os.path.exists(path):
        raise BenchmarkError(f"There is no {path}: give --data with {content}.")
    folder = Folder(path, _files(path))
    if not folder.files:
        raise BenchmarkError(f"{path} has no {', '.join(SUFFIXES)} files: give --data with {content}.")
    return folder


def _is_named(path: str, name: str) -> bool:
    """True for NAME.jsonl and NAME-00000-of-00002.jsonl."""
    stem = PurePosixPath(path).stem
    return stem.startswith(name) and bool(_SPLIT_PART.fullmatch(stem, len(name)))


def _files(path: Path) -> Mapping[str, Callable[[], bytes]]:
    if path.is_file():
        known = {path.name: partial(_read, path)} if path.suffix in SUFFIXES else {}
        return _in_zip(path) if zipfile.is_zipfile(path) else known
    found = {file.relative_to(path).as_posix(): file for file in sorted(_walked(path)) if file.is_file()}
    plain = {name: partial(_read, file) for name, file in found.items() if file.suffix in SUFFIXES}
    if plain:
        return plain
    zips = [file for file in found.values() if file.suffix == ".zip"]
    return {name: read for file in zips for name, read in _in_zip(file).items()}


def _walked(folder: Path) -> Iterator[Path]:
    """All files in a folder and those inside it. Raises BenchmarkError for one that cannot be looked into."""

    def refuse(problem: OSError) -> NoReturn:
        raise BenchmarkError(f"Cannot read {problem.filename}: {problem.strerror}. Make it readable, or move it away.")

    for place, _, names in os.walk(folder, onerror=refuse):
        yield from (Path(place, name) for name in names)


def _read(path: Path) -> bytes:
    try:
        with reading(path) as file:
            return _limited(file.read(LARGEST_TEXT + 1), str(path))
    except FileError as problem:
        raise BenchmarkError(str(problem)) from None


def _in_zip(path: Path) -> Mapping[str, Callable[[], bytes]]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = sorted(name for name in archive.namelist() if name.endswith(SUFFIXES))
    except _DAMAGED as problem:
        raise BenchmarkError(f"{path} cannot be read: {problem}. Fetch it again.") from None
    return {name: partial(_read_member, path, name) for name in names}


def _read_member(path: Path, name: str) -> bytes:
    try:
        with zipfile.ZipFile(path) as archive, archive.open(name) as member:
            return _limited(member.read(LARGEST_TEXT + 1), f"{path}, {name}")
    except _DAMAGED as problem:
        raise BenchmarkError(f"{path}, {name}: cannot be read ({problem}). Fetch the file again.") from None


def _limited(content: bytes, origin: str) -> bytes:
    if len(content) > LARGEST_TEXT:
        raise BenchmarkError(f"{origin} has more than {LARGEST_TEXT >> 30} GiB, too much for a benchmark's file.")
    return content
