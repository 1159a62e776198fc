"""Packed blocks whose tensors do not fit together are refused."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from support.packed_attention import DENSE, KEYS, Layer, build
from winnow.kernels import PackedBlock


def broken_blocks() -> dict[str, tuple[str, Any]]:
    """Per mistake: the format to start from and what is done to the block's keys."""

    def entries(**changes: Any) -> Any:
        return lambda keys: dataclasses.replace(keys, entries=dataclasses.replace(keys.entries, **changes))

    def pruned(**changes: Any) -> Any:
        return lambda keys: dataclasses.replace(keys, pruned=dataclasses.replace(keys.pruned, **changes))

    byte = torch.uint8
    return {
        "known are 16": ("8", entries(bits=5)),
        r"entries of keys .* \[40, 64\]": ("8", entries(data=torch.zeros(40, 63, dtype=byte))),
        "entries of keys are torch.int8": ("8", entries(data=torch.zeros(40, 64, dtype=torch.int8))),
        "contiguous": ("8", entries(data=torch.zeros(64, 40, dtype=byte).T)),
        "have no scales": ("8", entries(scales=None)),
        r"scales of keys .* \[40\]": ("8", entries(scales=torch.ones(39))),
        "scales of keys are torch.float64": ("8", entries(scales=torch.ones(40, dtype=torch.float64))),
        r"scales of keys .* \[40, 2\]": ("4 by 32", entries(scales=torch.ones(40, 3))),
        "keys have a scale for 48 channels": ("4 by 32", entries(group=48)),
        "32 or 64 go, without zeros": ("kivi 4", entries(group=32)),
        "without zeros or masks": ("spark 8", entries(group=32)),
        "zeros of keys": ("kivi 4", entries(zeros=torch.ones(2, 63))),
        "channels of keys must be in": ("think", lambda k: dataclasses.replace(k, channels=k.channels + 64)),
        "channels of keys are": ("think", lambda k: dataclasses.replace(k, channels=k.channels[:1])),
        "one scale per slot": ("spark 8", entries(zeros=torch.ones(2, 64))),
        "masks of keys": ("spark", pruned(masks=torch.zeros(40, 7, dtype=byte))),
        "statistics of keys": ("spark gaussian", pruned(stats=torch.ones(40, 1))),
        "norms of keys": ("spark", pruned(inverse_norms=torch.ones(2, 63))),
        "signs of keys": ("ragged", pruned(signs=torch.ones(40, 8, dtype=byte))),
        "statistics of keys are": ("spark truncated gaussian", pruned(stats=torch.ones(40, 2))),
        r"statistics of keys .* \[40, 3\]": ("spark truncated gaussian", pruned(stats=torch.ones(40, 4))),
        "the constant of a recovery is inf": ("spark constant", pruned(fill=math.inf)),
        "the constant of a recovery is nan": ("spark constant", pruned(fill=math.nan)),
        "unknown recovery": ("spark", pruned(recovery="other")),
        "starts of keys are": ("ragged", pruned(starts=torch.zeros(3, 2, dtype=torch.int64))),
        "starts of keys must": ("ragged", pruned(starts=torch.full((2, 2), 10**6))),
        "starts of keys must lie": ("ragged", pruned(starts=torch.full((2, 2), -1))),
    }


@pytest.mark.parametrize("mistake", broken_blocks())
def test_wrong_shapes_are_refused(mistake: str) -> None:
    name, change = broken_blocks()[mistake]
    problem = build(Layer([[(KEYS[name], DENSE)]], [[[32, 32] if "kivi" in name else [37, 3]]], [0]))
    block = problem.prefixes[0]
    assert isinstance(block, PackedBlock)
    with pytest.raises(ValueError, match=mistake):
        dataclasses.replace(block, keys=change(block.keys))


def test_grouped_keys_need_whole_groups() -> None:
    problem = build(Layer([[(KEYS["kivi 4"], DENSE)]], [[[32, 32]]], [0]))
    block = problem.prefixes[0]
    assert isinstance(block, PackedBlock)
    with pytest.raises(ValueError, match="multiples of 32"):
        dataclasses.replace(block, offsets=torch.tensor([0, 31, 64]))
