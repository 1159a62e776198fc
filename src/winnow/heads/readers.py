"""Tables of head scores from files, published ones included."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path

from winnow.errors import HeadScoresError
from winnow.heads.cokv_file import LAYOUT as COKV_LAYOUT
from winnow.heads.cokv_file import Halves, is_cokv, read_cokv, task_of
from winnow.heads.duo_file import read_duo
from winnow.heads.files import FileKind, file_kind, read_json
from winnow.heads.headkv_file import LAYOUT as HEADKV_LAYOUT
from winnow.heads.headkv_file import HeadKVKind, is_headkv, read_headkv
from winnow.heads.scores import HeadScores

__all__ = [
    "Halves",
    "HeadKVKind",
    "Layout",
    "layout_of",
    "read_cokv",
    "read_duo",
    "read_headkv",
    "read_scores",
    "read_tables",
]


class Layout(Enum):
    """Layouts of files of head scores, by who publishes them."""

    OWN = "Winnow"
    HEADKV = "HeadKV"
    COKV = "CoKV"
    DUO = "DuoAttention"


def read_scores(
    source: Path | str | Sequence[Path | str],
    kind: HeadKVKind | None = None,
    halves: Halves = "both",
    kv_heads: int | None = None,
) -> HeadScores:
    """Reads one table of head scores in any of the four formats.

    Args:
        source: a file, or the files of one CoKV task.
        kind: kind of a HeadKV table, if its file name does not say.
        halves: the halves of CoKV's samples to use.
        kv_heads: number of KV heads per layer, if a CoKV file does not say.

    Raises:
        HeadScoresError: a file cannot be read, or several files are not one table.
    """
    tables = read_tables([source] if isinstance(source, str | Path) else source, kind, halves, kv_heads)
    if len(tables) != 1:
        raise HeadScoresError(
            f"These files are {len(tables)} tables: read them one by one, and average them with HeadScores.mean."
        )
    return next(iter(tables.values()))


def read_tables(
    sources: Sequence[Path | str],
    kind: HeadKVKind | None = None,
    halves: Halves = "both",
    kv_heads: int | None = None,
) -> dict[tuple[Path, ...], HeadScores]:
    """Reads the tables in several files, by the files of each: all CoKV files of one task are one table.

    The options are those of `read_scores`. Raises HeadScoresError.
    """
    tasks: dict[object, list[Path]] = {}
    for file in dict.fromkeys(map(Path, sources)):
        tasks.setdefault(_task(file), []).append(file)
    return {
        tuple(files): (
            read_cokv(files, halves, kv_heads) if len(files) > 1 else _read_one(files[0], kind, halves, kv_heads)
        )
        for files in tasks.values()
    }


def _task(file: Path) -> object:
    """The mark that files of the same table have in common."""
    named = task_of(file)
    return named if any(named) and layout_of(file) is Layout.COKV else file


def _read_one(file: Path, kind: HeadKVKind | None, halves: Halves, kv_heads: int | None) -> HeadScores:
    match layout_of(file):
        case Layout.OWN:
            return HeadScores.load(file)
        case Layout.DUO:
            return read_duo(file)
        case Layout.COKV:
            return read_cokv(file, halves, kv_heads)
        case Layout.HEADKV:
            return read_headkv(file, kind)


def layout_of(file: Path) -> Layout:
    """The layout of a file. Raises HeadScoresError for one that has none of them, or cannot be read."""
    found = file_kind(file)
    if found is not FileKind.JSON:
        return Layout.OWN if found is FileKind.SAFETENSORS else Layout.DUO
    content = read_json(file, f"{HEADKV_LAYOUT} or {COKV_LAYOUT}")
    if is_cokv(content):
        return Layout.COKV
    if is_headkv(content):
        return Layout.HEADKV
    raise HeadScoresError(f"{file} is JSON of an unknown layout: Winnow reads {HEADKV_LAYOUT}, and {COKV_LAYOUT}.")
