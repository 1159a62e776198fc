"""The folder of a report: written beside its place, or in the folder that is there, and put there when complete."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from winnow.errors import FileError, JsonError
from winnow.files import make_folder, read_text, replacing
from winnow.strict_json import parse_object

RESULTS = "data/results.json"
"""Names all files of the report, so that another one replaces these and no others."""
FILES = "files"


def check_free(folder: Path, force: bool) -> None:
    """Raises FileError where a report cannot go: something is there, and is not to be replaced."""
    if folder.exists() and not folder.is_dir():
        raise FileError(f"{folder} is a file; give a folder.")
    if _is_taken(folder) and not force:
        raise FileError(f"{folder} exists; give another folder with --out, or --force to replace the report in it.")
    target = folder.resolve()
    make_folder(target if target.exists() else target.parent)


def write_folder(folder: Path, files: Mapping[str, bytes], force: bool) -> None:
    """Writes files by their names in the folder; on an error or an interrupt, what was there stays as it was.

    force: files of an earlier report are replaced; others stay, and FileError says so where one has a name that is
    needed. Also raises FileError where nothing can be written.
    """
    check_free(folder, force)
    target = folder.resolve()
    earlier = _files_of(target)
    for name in files:
        if name not in earlier and (target / name).exists():
            raise FileError(f"{folder / name} was not written by winnow report; give another folder with --out.")
    with _unfinished(target) as beside:
        _write(beside, folder, files)
        try:
            _put_in_place(beside, target, files, earlier)
        except KeyboardInterrupt:
            # Half of two reports would be neither; what is left takes no time.
            _put_in_place(beside, target, files, earlier)
            raise


@contextmanager
def _unfinished(target: Path) -> Iterator[Path]:
    name = f".winnow-{secrets.token_hex(8)}.part"
    # A folder that is there may be a disk of its own, or the only place to write to.
    beside = target / name if target.is_dir() else target.with_name(name)
    try:
        yield beside
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _write(beside: Path, folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        try:
            with replacing(beside / name, size=len(content)) as file:
                file.write(content)
        except FileError as problem:
            # The user knows the folder by its own name.
            raise FileError(str(problem).replace(str(beside), str(folder))) from None


def _put_in_place(beside: Path, target: Path, files: Mapping[str, bytes], earlier: set[str]) -> None:
    """Can be repeated from any point on."""
    try:
        if not target.exists():
            beside.rename(target)
            return
        for name in files:
            if (beside / name).exists():
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                (beside / name).replace(target / name)
        for name in earlier - files.keys():
            (target / name).unlink(missing_ok=True)
    except OSError as problem:
        raise FileError(f"Cannot write to {target}: {problem.strerror or problem}.") from None


def _is_taken(folder: Path) -> bool:
    try:
        return folder.is_dir() and any(folder.iterdir())
    except OSError as problem:
        raise FileError(f"Cannot read {folder}: {problem.strerror}.") from None


def _files_of(folder: Path) -> set[str]:
    """Files that an earlier report says it wrote here."""
    with suppress(FileError, JsonError):
        named = parse_object(read_text(folder / RESULTS)).get(FILES)
        return {name for name in named if _is_inside(name)} if isinstance(named, list) else set()
    return set()


def _is_inside(name: object) -> bool:
    return isinstance(name, str) and not PurePosixPath(name).is_absolute() and ".." not in PurePosixPath(name).parts
