"""Sizes that contradict each other come back as an error from the compiled library, before it reads through them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch

from support.instruction_sets import available
from support.packed_attention import DENSE, KEYS, Layer, build
from winnow.kernels import native

pytestmark = pytest.mark.skipif(not available(), reason="needs the native library")
HUGE = 1 << 40


def setting(side: str, name: str, value: Any) -> Callable[[Any], None]:
    """A change of one field of a part's keys or values; of the part itself for ""."""

    def change(part: Any) -> None:
        setattr(getattr(part, side) if side else part, name, value)

    return change


def writing(name: str, kind: Any, index: int, value: int) -> Callable[[Any], None]:
    """A change of one number in an array that a part points to."""

    def change(part: Any) -> None:
        owner = part.keys if name == "channels" else part
        ctypes.cast(getattr(owner, name), ctypes.POINTER(kind))[index] = value

    return change


CASES = {
    "channels wider than the head": ("think", setting("keys", "kept", 20_000)),
    "a channel beyond the head": ("think", writing("channels", ctypes.c_int16, 3, 64)),
    "a negative channel": ("think", writing("channels", ctypes.c_int16, 0, -1)),
    "channels of values": ("8", lambda part: setattr(part.values, "channels", part.starts)),
    "narrow values": ("8", setting("values", "kept", 1)),
    "unknown bits": ("8", setting("keys", "bits", 5)),
    "no scales": ("8", setting("keys", "scales", None)),
    "no zeros": ("kivi 4", setting("keys", "zeros", None)),
    "short data": ("8", setting("keys", "data_bytes", 100)),
    "long rows": ("8", setting("keys", "row_bytes", HUGE)),
    "short values": ("8", setting("values", "data_bytes", 100)),
    "more slots than data": ("8", setting("", "slots", HUGE)),
    "a head beyond the slots": ("8", writing("stops", ctypes.c_int64, 1, HUGE)),
    "a head before the first slot": ("8", writing("starts", ctypes.c_int64, 0, -5)),
    "an unknown recovery": ("spark", setting("keys", "recovery", 9)),
    "no draws": ("spark gaussian", setting("keys", "draws", None)),
    "one statistic": ("spark gaussian", setting("keys", "stats_width", 1)),
    "short signs": ("spark", setting("keys", "signs_bytes", 3)),
    "rotated numbers as they are": ("8", setting("values", "rotated", 1)),
    "rotated masks": ("spark 8", setting("keys", "rotated", 1)),
    "rotated channels": ("think 8", setting("keys", "rotated", 1)),
    "means of values": ("8", lambda part: setattr(part.values, "means", part.keys.scales)),
    "means of masked keys": ("spark 8", lambda part: setattr(part.keys, "means", part.keys.scales)),
    "spreads of values": ("8", lambda part: setattr(part.values, "spreads", part.keys.scales)),
    "masks and channels": ("spark", lambda part: setattr(part.keys, "channels", part.starts)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_part_that_contradicts_itself_is_an_error(case: str) -> None:
    form, change = CASES[case]
    problem = build(Layer([[(KEYS[form], DENSE)]], [[[32, 64]]], [0]))
    plan = native.NativePlan(problem.prefixes, problem.tail, problem.spec)
    expected = plan.run(problem.query)
    assert bool(expected.isfinite().all())
    change(plan._alive[1][0])
    with pytest.raises(ValueError, match="the sizes of a block contradict each other"):
        plan.run(problem.query)


def test_a_dense_part_shorter_than_its_slots_is_an_error() -> None:
    problem = build(Layer([[None]], [[[32, 64]]], [0]))
    plan = native.NativePlan(problem.prefixes, problem.tail, problem.spec)
    plan._alive[1][0].values.data_bytes //= 2
    with pytest.raises(ValueError, match="contradict"):
        plan.run(problem.query)


@pytest.mark.parametrize("start", [-HUGE, HUGE])
def test_rows_of_different_length_never_begin_outside_their_arrays(start: int) -> None:
    problem = build(Layer([[(KEYS["ragged"], DENSE)]], [[[32, 64]]], [0]))
    plan = native.NativePlan(problem.prefixes, problem.tail, problem.spec)
    block = problem.prefixes[0]
    block.keys.pruned.starts[1] = torch.tensor([start, start])  # type: ignore[union-attr]
    assert plan.run(problem.query).shape == problem.query.transpose(1, 2).shape
