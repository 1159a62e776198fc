"""Decode attention over dense slots by a few operators of torch, with lengths read on the device alone.

Triton's interpreter takes a third of a second for a step of the smallest model; tests of what happens around attention
need many steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor

from winnow.kernels import interface
from winnow.kernels.formats import Block, DenseBlock
from winnow.kernels.segments import AttentionSpec, TailSegments


class DevicePlan:
    """As other plans, without soft-capping and sinks."""

    def __init__(self, prefixes: Sequence[Block | None], tail: TailSegments, spec: AttentionSpec) -> None:
        self.tail, self.spec = tail, spec
        self.heads = [[_slots(prefix, head) for head in range(tail.keys.shape[1])] for prefix in prefixes]
        self.places = torch.arange(tail.keys.shape[2], device=tail.keys.device)

    def nbytes(self) -> int:
        """Nothing beyond prefixes and tail."""
        return 0

    def run(self, query: Tensor) -> Tensor:
        """query [R, Hq, Q, D] -> output [R, Q, Hq, Dv]."""
        there, tokens = self.tail.lengths_there, query.shape[2]
        assert there is not None
        limits = there[:, None] - torch.arange(tokens - 1, -1, -1, device=query.device)
        hidden = self.places >= limits[:, :, None]
        group = query.shape[1] // self.tail.keys.shape[1]
        found = []
        for row, prefixes in enumerate(self.heads):
            for head, (keys, values) in enumerate(prefixes):
                asked = query[row, head * group : (head + 1) * group] * self.spec.scaling
                before, later = asked @ keys.T, asked @ self.tail.keys[row, head].nan_to_num().T
                weights = torch.cat([before, later.masked_fill(hidden[row], -torch.inf)], dim=-1).softmax(-1)
                found.append(weights @ torch.cat([values, self.tail.values[row, head].nan_to_num()]))
        return torch.cat(found).unflatten(0, query.shape[:2]).transpose(1, 2).contiguous()


@contextmanager
def device_plans() -> Iterator[None]:
    """Within, new plans are these, on every device but the CPU."""
    plan = interface._plan

    def made(prefixes: Sequence[Block | None], tail: TailSegments, spec: AttentionSpec) -> object:
        return (plan if tail.keys.device.type == "cpu" else DevicePlan)(prefixes, tail, spec)

    with mock.patch.object(interface, "_plan", made):
        yield


def _slots(prefix: Block | None, head: int) -> tuple[Tensor, Tensor]:
    assert isinstance(prefix, DenseBlock)
    kept = slice(int(prefix.starts[head]), int(prefix.stops[head]))
    return prefix.keys[kept], prefix.values[kept]
