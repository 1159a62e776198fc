"""Blocks of every format taken apart and put together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from support.packed_attention import DENSE, FORMATS, KEYS, Layer, build
from support.packed_slots import assert_same_tensors
from winnow.kernels import Block, DenseBlock
from winnow.kernels.formats.serialize import on_device, put_together, take_apart


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
    found = put_together(format, tensors, facts)
    assert_same_tensors(found, block)
    assert found.keys.entries.data is block.keys.entries.data  # type: ignore[union-attr]


def test_dense_blocks_and_parts_come_back() -> None:
    dense = block_of(None)
    assert isinstance(dense, DenseBlock)
    later = replace(dense, later_starts=dense.offsets[:-1] + 3)
    for block in (dense, later, block_of(None, (KEYS["ragged 4"], DENSE), (KEYS["think"], DENSE))):
        assert_same_tensors(put_together(*take_apart(block)), block)


def test_names_in_files_stay() -> None:
    """Contexts that exist were written with these."""
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


def test_blocks_of_before_rotation_are_read() -> None:
    block = block_of(FORMATS["keys 4"])
    format, tensors, facts = take_apart(block)
    old = {name: fact for name, fact in facts.items() if name.split(".")[-1] not in ("rotated", "means", "spreads")}
    assert len(old) == len(facts) - 4
    assert_same_tensors(put_together(format, tensors, old), block)


def test_files_without_groups_of_channels_open() -> None:
    """Those that were written before there were any."""
    block = block_of((KEYS["8"], DENSE))
    format, tensors, facts = take_apart(block)
    older = {name: fact for name, fact in facts.items() if not name.endswith("entries.group")}
    assert len(older) == len(facts) - 2
    assert_same_tensors(put_together(format, tensors, older), block)


def test_offsets_stay_on_the_cpu() -> None:
    """All other tensors move; the meta device stands for any."""
    _, tensors, facts = take_apart(block_of((KEYS["8"], DENSE)))
    found = on_device(put_together("packed", tensors, facts), torch.device("meta"))
    assert (found.offsets.device.type, found.keys.entries.scales.device.type) == ("cpu", "meta")  # type: ignore[union-attr]


BROKEN = {
    'kind must be one of "dense", "packed", "parts", not "runes"': {"kind": "runes"},
    'no "colors" belongs there, only keys, values, offsets': {"colors": 3},
    'there is no "values"': {"values": None},
    'keys must be a tensor, not {"kind": "keys"}': {"keys": None, "keys.kind": "keys"},
    '"keys" comes twice': {"keys.data": torch.zeros(3)},
    "offsets must be a tensor, not null": {"offsets": "null"},
    "offsets has no axes": {"offsets": torch.tensor(3)},
    "entries of values are .* and must be torch.float64": {"keys": torch.zeros(96, 64, dtype=torch.float64)},
    "heads of 0 channels": {"keys": torch.zeros(96, 0)},
}


@pytest.mark.parametrize("mistake", BROKEN)
def test_parts_that_make_no_dense_block_are_refused(mistake: str) -> None:
    format, tensors, facts = take_apart(block_of(None))
    leaves: dict[str, Any] = {**tensors, **facts, "kind": format}
    for name, value in BROKEN[mistake].items():
        leaves.pop(name, None)
        if value is not None:
            leaves[name] = None if isinstance(value, str) and value == "null" else value
    found = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, torch.Tensor)}
    plain = {name: leaf for name, leaf in leaves.items() if name not in found and name != "kind"}
    with pytest.raises(ValueError, match=mistake):
        put_together(leaves["kind"], found, plain)


def changed(form: Any, **leaves: Any) -> None:
    """Puts a packed block together after some of its leaves were changed; underscores are dots."""
    format, tensors, facts = take_apart(block_of(form))
    for name, change in leaves.items():
        dotted = name.replace("__", ".")
        if dotted in tensors:
            tensors[dotted] = change(tensors[dotted].clone())
        else:
            facts[dotted] = change(facts[dotted])
    put_together(format, tensors, facts)


def put(index: Any, value: Any) -> Any:
    """A change that writes one number."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor[index] = value
        return tensor

    return change


PACKED = {
    'keys.kind must be "keys", not "values"': ("8", {"keys__kind": lambda _: "values"}),
    'values.kind must be "values", not "keys"': ("8", {"values__kind": lambda _: "keys"}),
    'dtype must be a dtype, not "torch.load"': ("8", {"dtype": lambda _: "torch.load"}),
    "keys.dim must be a whole number, not true": ("8", {"keys__dim": lambda _: True}),
    "entries of keys are": ("8", {"keys__dim": lambda _: 20_000}),
    "known are 16": ("8", {"keys__entries__bits": lambda _: 5}),
    "scales of keys must be finite": ("8", {"keys__entries__scales": put(3, float("nan"))}),
    "keys have a scale for 5 channels": ("4 by 32", {"keys__entries__group": lambda _: 5}),
    "zeros of keys must be finite": ("kivi 4", {"keys__entries__zeros": put((0, 0), float("inf"))}),
    "channels of keys must ascend": ("think", {"keys__channels": lambda c: c.flip(1).contiguous()}),
    "channels of keys must be in": ("think", {"keys__channels": put((0, -1), 64)}),
    "channels of keys must be in 0": ("think", {"keys__channels": put((0, 0), -1)}),
    "masks of keys must keep": ("spark", {"keys__pruned__masks": put((0, 0), 255)}),
    "masks of keys must keep as many": ("ragged", {"keys__pruned__masks": put((40, 0), 1)}),
    "statistics of keys must be finite": ("spark", {"keys__pruned__stats": put((0, 0), float("nan"))}),
    "norms of keys must be finite": ("spark", {"keys__pruned__inverse_norms": put((0, 0), float("inf"))}),
    'keys.pruned.recovery must be one of .*, not "other"': ("spark", {"keys__pruned__recovery": lambda _: "other"}),
    "seed of a recovery is -1": ("spark", {"keys__pruned__seed": lambda _: -1}),
    "starts of keys must lie": ("ragged", {"keys__pruned__starts": put((1, 0), -1)}),
    "prefix offsets must partition": ("8", {"offsets": put(1, 100)}),
}


@pytest.mark.parametrize("mistake", PACKED)
def test_parts_that_make_no_packed_block_are_refused(mistake: str) -> None:
    name, changes = PACKED[mistake]
    changed((KEYS[name], DENSE))
    with pytest.raises(ValueError, match=mistake):
        changed((KEYS[name], DENSE), **changes)


def test_rows_of_different_length_begin_where_their_lengths_say() -> None:
    with pytest.raises(ValueError, match="masks of keys must keep as many"):
        changed((KEYS["ragged"], DENSE), keys__pruned__starts=put((1, 0), 4))
