"""Formats of files, told by their first bytes: nothing that could run code is opened."""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from support.head_scores import table
from winnow.heads import HeadScores, HeadScoresError, read_cokv, read_duo, read_headkv, read_scores
from winnow.heads.files import FileKind, file_kind


class Bomb:
    """A pickle of it would show that it was opened."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was opened",))


def saved_by_torch(path: Path) -> None:
    torch.save(Bomb(), path)


def saved_by_old_torch(path: Path) -> None:
    torch.save(Bomb(), path, _use_new_zipfile_serialization=False)


def saved_by_numpy(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.array([Bomb()]), allow_pickle=True)


def pickled(protocol: int) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(pickle.dumps(Bomb(), protocol))


@pytest.mark.parametrize("read", [HeadScores.load, read_scores, read_headkv, read_cokv, read_duo])
@pytest.mark.parametrize("suffix", ["pt", "npy", "pkl", "safetensors", "json", "tsv"])
@pytest.mark.parametrize(
    ("write", "says"),
    [
        (saved_by_torch, "a zip archive"),
        (saved_by_old_torch, "a pickle"),
        (saved_by_numpy, "a NumPy file"),
        *((pickled(protocol), "a pickle") for protocol in (2, 3, 4, 5)),
        (lambda path: path.write_bytes(b"\x1f\x8b\x08\x00"), "compressed with gzip"),
        (lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n"), "an HDF5 file"),
    ],
)
def test_nothing_that_could_run_code_is_opened(tmp_path, write, says, suffix, read):
    path = tmp_path / f"scores_retrieval_heads.{suffix}"
    write(path)
    with pytest.raises(HeadScoresError, match=says):
        read(path)


@pytest.mark.parametrize("read", [HeadScores.load, read_scores, read_headkv, read_cokv, read_duo])
def test_what_is_no_file(tmp_path, read):
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "a.csv").write_text("1,2\n")
    (tmp_path / "old.pkl").write_bytes(pickle.dumps([1.0], 0))
    (tmp_path / "latin.json").write_bytes(b'{"0-0": ["\xe9"]}')
    for name, says in (
        ("none.json", "There is no file"),
        ("", "is a directory"),
        ("empty.json", "is empty"),
        ("a.csv", "unknown suffix"),
        ("old.pkl", "unknown suffix"),
    ):
        with pytest.raises(HeadScoresError, match=says):
            read(tmp_path / name)
    with pytest.raises(HeadScoresError):
        read(tmp_path / "latin.json")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[1, 2]", "not a JSON object, but a list"),
        ("3", "not a JSON object, but a number"),
        ('{"weights": [1]}', "unknown layout"),
        ("{}", "unknown layout"),
        ("[" * 100_000, "nested deeper"),
        ('{"0-0": [' + "9" * 5000 + "]}", "a number of too many digits"),
    ],
)
def test_json_of_an_unknown_layout(tmp_path, text, says):
    path = tmp_path / "a_retrieval_heads.json"
    path.write_text(text)
    with pytest.raises(HeadScoresError, match=says):
        read_scores(path)


def test_magic_bytes_are_those_of_the_writers(tmp_path):
    """The formats are told by what torch and numpy write today."""
    buffer = io.BytesIO()
    torch.save(torch.ones(2), buffer)
    assert buffer.getvalue()[:4] == b"PK\x03\x04"
    path = table().save(tmp_path / "a.safetensors")
    assert struct.unpack("<Q", path.read_bytes()[:8])[0] < 2**16


def test_bytes_that_only_look_like_a_safetensors_header(tmp_path):
    path = tmp_path / "scores.json"
    path.write_bytes(b"\x80\x02abcdef{}")
    with pytest.raises(HeadScoresError, match="is a pickle"):
        file_kind(path)


def test_suffixes_in_capitals(tmp_path):
    path = tmp_path / "SCORES.JSON"
    path.write_text("{}")
    assert file_kind(path) is FileKind.JSON
