"""Blocks of every format taken apart and put together."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from support.packed_attention import DENSE, FORMATS, KEYS, Layer, build
from support.packed_slots import assert_same_tensors
from winnow.kernels import Block, DenseBlock
from winnow.kernels.formats.format import FORMATS as NAMES
from winnow.kernels.formats.format import ON_CPU, Format
from winnow.kernels.formats.serialize import put_together, take_apart

CPU = torch.device("cpu")


def block_of(*forms: Any) -> Block:
    """A prefix of two heads, with a part per form."""
    (block,) = build(Layer([list(forms)], [[[32, 64]] * len(forms)], [0])).prefixes
    assert block is not None
    return block


@pytest.mark.parametrize("name", FORMATS)
def test_every_packed_format_comes_back_over_the_same_memory(name: str) -> None:
    block = block_of(FORMATS[name])
    format, tensors, facts = take_apart(block)
    assert format == "packed"
    found = put_together(format, tensors, facts, CPU)
    assert_same_tensors(found, block)
    assert found.keys.entries.data is block.keys.entries.data  # type: ignore[union-attr]


def test_dense_blocks_and_parts_come_back() -> None:
    dense = block_of(None)
    assert isinstance(dense, DenseBlock)
    later = replace(dense, later_starts=dense.offsets[:-1] + 3)
    for block in (dense, later, block_of(None, (KEYS["ragged 4"], DENSE), (KEYS["think"], DENSE))):
        assert_same_tensors(put_together(*take_apart(block), CPU), block)


def test_names_in_files_stay() -> None:
    """Contexts that exist were written with these."""
    assert {"dense", "packed", "parts", "keys", "values", "entries", "pruned"} <= set(NAMES)
    format, tensors, facts = take_apart(block_of(None, (KEYS["spark gaussian"], DENSE)))
    dense = {"keys", "values", "offsets"}
    packed = {
        "keys.entries.data",
        *(f"keys.pruned.{name}" for name in ("masks", "stats", "signs", "inverse_norms")),
        "values.entries.data",
        "offsets",
    }
    assert format == "parts"
    assert set(tensors) == {f"parts.0.{name}" for name in dense} | {f"parts.1.{name}" for name in packed}
    assert {name: fact for name, fact in facts.items() if name.endswith("kind")} == {
        "parts.0.kind": "dense",
        "parts.1.kind": "packed",
        "parts.1.keys.kind": "keys",
        "parts.1.keys.entries.kind": "entries",
        "parts.1.keys.pruned.kind": "pruned",
        "parts.1.values.kind": "values",
        "parts.1.values.entries.kind": "entries",
    }
    assert facts["parts.1.dtype"] == "torch.float32"


def test_offsets_stay_on_the_cpu() -> None:
    """All other tensors move; the meta device stands for any."""
    _, tensors, facts = take_apart(block_of((KEYS["8"], DENSE)))
    found = put_together("packed", tensors, facts, torch.device("meta"))
    assert (found.offsets.device.type, found.keys.entries.scales.device.type) == ("cpu", "meta")  # type: ignore[union-attr]


def test_a_new_format_is_its_class_and_nothing_else() -> None:
    @dataclass(frozen=True)
    class Marked(Format, name="marked"):
        inner: DenseBlock
        marks: torch.Tensor = field(metadata=ON_CPU)

    dense = block_of(None)
    assert isinstance(dense, DenseBlock)
    block: Any = Marked(dense, torch.arange(3))
    try:
        assert_same_tensors(put_together(*take_apart(block), CPU), block)
    finally:
        del NAMES["marked"]


def test_unknown_formats_and_parts_are_refused() -> None:
    _, tensors, facts = take_apart(block_of(None))
    with pytest.raises(KeyError, match="runes"):
        put_together("runes", tensors, facts, CPU)
    with pytest.raises(TypeError, match="colors"):
        put_together("dense", tensors, {**facts, "colors": 3}, CPU)
