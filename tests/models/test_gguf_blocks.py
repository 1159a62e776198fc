"""Blocks of GGUF files against the package gguf, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from winnow.models.gguf_blocks import bits_of_levels, is_of_levels, levels_of
from winnow.models.gguf_rows import FileRows, FileTensor

gguf = pytest.importorskip("gguf")
pytestmark = pytest.mark.usefixtures("one_thread")

KINDS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
OTHERS = ["F32", "F16", "BF16", "Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS", "IQ3_S", "MXFP4"]


def size_of(kind: str) -> tuple[int, int]:
    """Numbers and bytes of a block."""
    numbers, bytes_ = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    return numbers, bytes_


def by_gguf(rows: np.ndarray, kind: str) -> np.ndarray:
    """rows [R, B] -> [R, I]. Damaged blocks have values that are no numbers."""
    with np.errstate(all="ignore"):
        return np.array(gguf.dequantize(rows, gguf.GGMLQuantizationType[kind])).reshape(len(rows), -1)


def bits(values: torch.Tensor | np.ndarray) -> np.ndarray:
    """The numbers as they are in memory, but for those that are none, of which there are many."""
    found = np.ascontiguousarray(np.asarray(values, np.float32))
    return np.where(np.isnan(found), 0, found.view(np.uint32))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20)
@given(rows=st.integers(1, 5), blocks=st.integers(1, 4), seed=st.integers(0, 1 << 20))
def test_levels_stand_for_the_values_of_blocks(kind: str, rows: int, blocks: int, seed: int) -> None:
    """Whatever the bytes are: scales that are infinite or no numbers, and zeros with a sign, too."""
    packed = np.random.default_rng(seed).integers(0, 256, (rows, blocks * size_of(kind)[1]), np.uint8)
    found = levels_of(torch.from_numpy(packed), kind)
    expected = by_gguf(packed, kind)
    assert np.array_equal(bits(found.values()), bits(expected))
    assert np.array_equal(np.isnan(found.values()), np.isnan(expected))


def test_kinds_are_told_apart() -> None:
    assert all(map(is_of_levels, KINDS))
    assert not any(map(is_of_levels, OTHERS))
    kept = {4: ["Q4_0", "Q4_1", "Q4_K"], 5: ["Q5_0", "Q5_1", "Q5_K"], 6: ["Q6_K"]}
    for bits, kinds in kept.items():
        assert [kind for kind in KINDS + OTHERS if bits_of_levels(kind) == bits] == kinds
    assert not any(map(bits_of_levels, [*OTHERS, "Q8_0"]))


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q5_1", "Q5_K", "Q6_K"])
def test_few_levels_have_a_step_for_as_many_numbers_as_layers_do(kind: str) -> None:
    numbers, bytes_ = size_of(kind)
    found = levels_of(torch.full((3, 512 // numbers * bytes_), 255, dtype=torch.uint8), kind)
    assert (found.levels.shape, found.steps.shape) == ((3, 512), (3, 32 if kind == "Q6_K" else 16))
    assert int(found.levels.max()) == (1 << int(kind[1])) - 1


def file_of(kinds: list[str], width: int, chance: np.random.Generator) -> tuple[list[FileTensor], np.ndarray]:
    """Tensors behind each other, of three rows each, and the values of all rows [R, I]."""
    tensors: list[FileTensor] = []
    for index, kind in enumerate(kinds):
        numbers, bytes_ = size_of(kind)
        rows = chance.integers(0, 60, (3, width // numbers * bytes_), np.uint8)  # no infinite scales
        tensors.append(FileTensor(3 * index, rows, kind, width))
    return tensors, np.concatenate([by_gguf(each.rows, each.kind) for each in tensors])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@settings(max_examples=30)
@given(data=st.data(), seed=st.integers(0, 1 << 20))
def test_rows_are_read_from_wherever_they_are(dtype: torch.dtype, data: st.DataObject, seed: int) -> None:
    kinds = data.draw(st.lists(st.sampled_from(KINDS + OTHERS), min_size=1, max_size=4))
    tensors, values = file_of(kinds, 256, np.random.default_rng(seed))
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    rows = np.random.default_rng(seed).integers(0, len(values), shape)
    found = FileRows(tensors, rows, dtype)
    assert found.shape == (*shape, 256)
    assert found[...].dtype == dtype
    assert torch.equal(found[...], torch.from_numpy(values[rows]).to(dtype))


def test_levels_are_those_of_some_rows() -> None:
    tensors, values = file_of(["Q4_0", "Q8_0", "Q4_0"], 64, np.random.default_rng(0))
    rows = FileRows(tensors, np.array([[7, 0], [2, 8]]), torch.float32)
    assert rows.bits == 4
    assert np.array_equal(rows.levels(slice(1, 4)).values(), values[[0, 2, 8]])


def test_rows_of_several_kinds_have_no_levels_in_common() -> None:
    tensors, _ = file_of(["Q4_0", "Q4_1", "F16"], 64, np.random.default_rng(0))
    assert FileRows(tensors, np.array([0, 3]), torch.float32).bits is None
    assert not FileRows(tensors, np.array([7]), torch.float32).have_few_bits


@pytest.mark.parametrize("rows", [[-1], [3]])
def test_rows_that_there_are_not_are_refused(rows: list[int]) -> None:
    tensors, _ = file_of(["Q4_0"], 64, np.random.default_rng(0))
    with pytest.raises(ValueError, match="no rows of one width"):
        FileRows(tensors, np.array(rows), torch.float32)


def test_rows_of_several_widths_are_refused() -> None:
    chance = np.random.default_rng(0)
    (first,), _ = file_of(["Q4_0"], 64, chance)
    (second,), _ = file_of(["Q4_0"], 32, chance)
    tensors = [first, FileTensor(3, second.rows, second.kind, 32)]
    with pytest.raises(ValueError, match="no rows of one width"):
        FileRows(tensors, np.array([0, 4]), torch.float32)
