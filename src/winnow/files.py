"""Text files that are read, and results that are written beside their target and put in its place when complete."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from winnow.errors import FileError

LARGEST_TEXT = 1 << 30
"""Bytes of a text at most; more is a device without end, or nothing that a model reads."""

OWN_MARKS = (b"tEXtSoftware\0winnow ", b'"written_by": "winnow ')
"""Bytes that tell a picture and a JSON file of winnow's from those of others; they are within the first `_START`."""

_START = 512
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_KINDS = {
    stat.S_IFDIR: "a directory; name a file in it",
    stat.S_IFIFO: "a pipe, and results go to regular files; give another name",
    stat.S_IFSOCK: "a socket, and results go to regular files; give another name",
    stat.S_IFCHR: "a device, and results go to regular files; give another name",
    stat.S_IFBLK: "a device, and results go to regular files; give another name",
}


def read_text(path: Path) -> str:
    """The text of a UTF-8 file or pipe, without a byte order mark. Raises FileError where there is none."""
    with _in_words(path), path.open("rb") as file:
        return decode(file.read(LARGEST_TEXT + 1), str(path))


@contextmanager
def reading(path: Path) -> Iterator[BinaryIO]:
    """A regular file to read from. Raises FileError where there is none, or reading fails."""
    with _in_words(path):
        mode = path.stat().st_mode
        # Opening a pipe would wait for somebody to write to it; opening a directory says that it is one.
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise FileError(f"{path} is not a regular file; copy its content to one.")
        file = path.open("rb")
    with file:
        try:
            yield file
        except OSError as problem:
            raise FileError(f"Cannot read {path}: {_reason(problem)}.") from None


def decode(content: bytes, origin: str) -> str:
    """The text that bytes hold. origin: where they are from, for the error. Raises FileError unless it is UTF-8."""
    if len(content) > LARGEST_TEXT:
        raise FileError(f"{origin} has more than {LARGEST_TEXT >> 30} GiB, which is too much for a model's text.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise FileError(
            f"{origin} is not UTF-8 text (byte {problem.start}); convert it to UTF-8, for example with iconv."
        ) from None
    if "\0" in text:
        raise FileError(
            f"{origin} is UTF-16, or not text (byte {content.index(0)} is zero); convert it to UTF-8, for example with "
            "iconv."
        )
    return text


def prepare_target(path: Path, overwrite: bool) -> None:
    """Makes the folder of a file to be written.

    Raises FileError where the name leads to anything but a regular file, to one that is not to be overwritten, or where
    nothing can be written.
    """
    _existing(path, overwrite)
    make_folder(_target(path).parent)


def check_own(path: Path) -> None:
    """Raises FileError where there is a file that was not written by winnow, or anything but a regular file."""
    if _existing(path, overwrite=True) is not None and not _is_own(path):
        raise FileError(f"{path} was not written by winnow; give another folder, or --force to replace it.")


def make_folder(path: Path) -> None:
    """Makes a folder, and those above it. Raises FileError where that cannot be, or nothing can be written to it."""
    probe = _beside(path / "probe")
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.touch(exist_ok=False)
    except (FileExistsError, NotADirectoryError):
        raise FileError(f"{_no_folder(path)} is a file; give a folder.") from None
    except (OSError, ValueError) as problem:
        raise FileError(f"Cannot write to {path}: {_reason(problem)}.") from None
    finally:
        _remove(probe)


@contextmanager
def replacing(path: Path, overwrite: bool = True, size: int | None = None) -> Iterator[BinaryIO]:
    """A file to write to, which gets the name `path` when it is complete, and else leaves nothing behind.

    Symbolic links stay, and what they lead to is replaced, with its permissions. size: bytes that it takes, as a full
    disk tells. Raises FileError as `prepare_target`, and where writing fails.
    """
    before = _existing(path, overwrite)
    target = _target(path)
    unfinished = _beside(target)
    make_folder(target.parent)
    try:
        with unfinished.open("xb") as file:
            if before is not None:
                _inherit(file, before)
            yield file
            file.flush()
            os.fsync(file.fileno())
        _put_in_place(unfinished, target, overwrite)
    except FileExistsError:
        raise FileError(_exists(path)) from None
    except OSError as problem:
        raise FileError(f"Cannot write {path}: {_reason(problem)}.{_remedy(problem, size)}") from None
    finally:
        # Gone already where all went well; also after an interrupt, no half file stays.
        _remove(unfinished)


def write_text(path: Path, text: str, overwrite: bool = True) -> None:
    """Writes UTF-8 text as `replacing` does; what is no text, as names of files in another encoding, is spelled out."""
    with replacing(path, overwrite) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def has_text_name(path: Path | str) -> bool:
    """True where a name is text; bytes of other encodings are not, and safetensors opens no such file."""
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def spelled_out(name: str) -> str:
    """A name from a command line or a folder; bytes of it that are not UTF-8 stand as "\\xe9", so that it is text."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


@contextmanager
def _in_words(path: Path) -> Iterator[None]:
    """Errors of a file that is read, in words."""
    try:
        yield
    except FileNotFoundError:
        raise FileError(f"There is no file {path}.") from None
    except IsADirectoryError:
        raise FileError(f"{path} is a directory; give a file.") from None
    except (OSError, ValueError) as problem:
        raise FileError(f"Cannot read {path}: {_reason(problem)}.") from None


def _existing(path: Path, overwrite: bool) -> os.stat_result | None:
    """The file that a name leads to, if there is one."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as problem:
        raise FileError(f"Cannot write {path}: {_reason(problem)}.") from None
    if not stat.S_ISREG(found.st_mode):
        raise FileError(f"{path} is {_KINDS.get(stat.S_IFMT(found.st_mode), 'no regular file; give another name')}.")
    if not overwrite:
        raise FileError(_exists(path))
    return found


def _target(path: Path) -> Path:
    """The end of all links."""
    try:
        return Path(os.path.realpath(path))
    except OSError as problem:
        # The working directory is gone.
        raise FileError(f"Cannot write {path}: {_reason(problem)}.") from None


def _beside(target: Path) -> Path:
    """A free name in the same folder; short, as the target's own may be as long as names can be."""
    return target.with_name(f".winnow-{secrets.token_hex(8)}.part")


def _remove(path: Path) -> None:
    with suppress(OSError, ValueError):
        path.unlink()


def _inherit(file: BinaryIO, before: os.stat_result) -> None:
    """Permissions stay, so that replacing publishes nothing, and the owner, where it may be given away."""
    with suppress(OSError):
        os.fchown(file.fileno(), before.st_uid, before.st_gid)
    with suppress(OSError):
        os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))


def _put_in_place(unfinished: Path, target: Path, overwrite: bool) -> None:
    """A link fails where a file of this name has appeared in the meantime; a rename would replace it."""
    if overwrite:
        unfinished.replace(target)
        return
    try:
        target.hardlink_to(unfinished)
    except FileExistsError:
        raise
    except OSError:
        # File systems without links.
        if target.exists():
            raise FileExistsError from None
        unfinished.rename(target)


def _is_own(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            start = file.read(_START)
    except OSError as problem:
        raise FileError(f"Cannot read {path}: {_reason(problem)}.") from None
    return any(mark in start for mark in OWN_MARKS)


def _exists(path: Path) -> str:
    return f"{path} exists; give another name, or overwrite it (overwrite=True, --force)."


def _no_folder(path: Path) -> Path:
    """The part of a path that should be a folder and is none."""
    return next((part for part in reversed([path, *path.parents]) if part.exists() and not part.is_dir()), path)


def _reason(problem: OSError | ValueError) -> str:
    if isinstance(problem, OSError):
        return problem.strerror or type(problem).__name__
    # A NUL, or half a surrogate pair.
    return "no file can have this name"


def _remedy(problem: OSError, size: int | None) -> str:
    if problem.errno not in _FULL:
        return ""
    return (
        " Make room, or write elsewhere."
        if size is None
        else (f" It takes {size / 2**20:.1f} MiB: make room, or write elsewhere.")
    )
