"""Constants and structs that Python and the native library share are compared when the library is loaded."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest
import torch

from winnow.kernels import native, native_args

HEADER = Path(__file__).parents[2] / "native" / "winnow_native.h"
STRUCTS = {
    "winnow_rows": native_args.RowsArgs,
    "winnow_part": native_args.PartArgs,
    "winnow_ring": native_args.RingArgs,
    "winnow_decode_args": native_args.DecodeArgs,
    "winnow_prune_args": native_args.PruneArgs,
    "winnow_rotate_args": native_args.RotateArgs,
    "winnow_columns": native_args.ColumnsArgs,
    "winnow_append_args": native_args.AppendArgs,
    "winnow_step_args": native_args.StepArgs,
    "winnow_constant": native_args.Constant,
}
BUILT = next((path for path in native.library_candidates() if path.exists()), None)

needs_library = pytest.mark.skipif(BUILT is None, reason="the native library was not built")


class Longer(native_args.PruneArgs):
    """One field more than the library knows."""

    _fields_ = (("more", ctypes.c_int64),)


@needs_library
def test_the_library_that_was_built_is_accepted() -> None:
    assert BUILT is not None
    assert native.open_library(BUILT).winnow_isa()


@needs_library
@pytest.mark.parametrize(
    ("module", "constant", "wrong", "named"),
    [
        (native, "ABI", native.ABI + 1, f"WINNOW_ABI is {native.ABI} instead of {native.ABI + 1}"),
        (native_args, "GROUP", 64, "WINNOW_SCALE_GROUP is 32 instead of 64"),
        (native_args, "STEP", 16, "WINNOW_START_STEP is 32 instead of 16"),
        (native_args, "DRAWS", 512, "WINNOW_DRAWS is 256 instead of 512"),
        (native_args, "BLOCK_BYTES", 32, "WINNOW_BLOCK_BYTES is 16 instead of 32"),
        (native_args, "PER_SLOT", 7, "WINNOW_PER_SLOT is 1 instead of 7"),
        (native_args, "DTYPES", {**native_args.DTYPES, torch.float16: 3}, "WINNOW_F16 is 2 instead of 3"),
        (native_args, "RECOVERIES", {**native_args.RECOVERIES, "gaussian": 4}, "WINNOW_GAUSSIAN is 1 instead of 4"),
        (native_args, "RECOVERIES", {**native_args.RECOVERIES, "new": 3}, "WINNOW_NEW is None instead of 3"),
        (native_args, "STATISTICS", {"mean": 2}, "WINNOW_MOMENTS is 3 instead of None"),
        (native_args, "PruneArgs", Longer, r"sizeof\(winnow_prune_args\) is \d+ instead of \d+"),
    ],
)
def test_a_library_of_another_version_is_refused(
    module: object, constant: str, wrong: object, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert BUILT is not None
    monkeypatch.setattr(module, constant, wrong)
    with pytest.raises(OSError, match=f"{named}.*reinstall"):
        native.open_library(BUILT)


def test_a_library_that_says_nothing_about_itself_is_refused() -> None:
    with pytest.raises(OSError, match="no kernel library of this version"):
        native._check_contract(ctypes.CDLL(None), Path("other.so"))


@pytest.mark.skipif(not HEADER.exists(), reason="only where the sources are")
@pytest.mark.parametrize("name", STRUCTS)
def test_fields_are_those_of_the_header_in_its_order(name: str) -> None:
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
    body = re.search(rf"struct {name} {{(.*?)}};", text, flags=re.DOTALL)
    assert body is not None
    declared = [field for line in body[1].split(";") for field in re.findall(r"(\w+)\s*(?:,|$)", line.strip())]
    assert declared == [field[0] for field in STRUCTS[name]._fields_]
