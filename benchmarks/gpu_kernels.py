"""Pieces of `gpu.py` about one layer: kernels beside the copy ceiling and beside other libraries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpu_clock import Clock, Run, free_bytes, host_us
from gpu_layers import Layer, Shape, layer
from gpu_peers import PEERS, Slots
from winnow.kernels import DenseBlock
from winnow.kernels.gpu.plan import TritonPlan

SHARE = 0.35
"""Share of the free memory that a layer may take; peers and packing need some beside it."""
SKEW = 4
"""The longest head over the mean, where heads are skewed."""


class Setting(NamedTuple):
    """A layer to attend over."""

    store: str
    tokens: int
    """Slots per head, on average."""
    rows: int = 1
    skewed: bool = False

    @property
    def name(self) -> str:
        """The piece of work in words."""
        return f"{self.store}, {self.tokens} slots, {self.rows} rows, {'skewed' if self.skewed else 'even'}"

    def slots(self, heads: int) -> list[int]:
        """Slots of every head, in multiples of 32."""
        if not self.skewed:
            return [self.tokens] * heads
        longest = min(SKEW, heads) * self.tokens
        rest = (heads * self.tokens - longest) // max(heads - 1, 1)
        return [max(32, count // 32 * 32) for count in (longest, *[rest] * (heads - 1))]


def measure_kernel(setting: Setting, shape: Shape, clock: Clock, ceiling: float) -> dict[str, Any]:
    """One layer's decode attention: its milliseconds, its bytes, its share of the ceiling, and its peers."""
    slots = setting.slots(shape.heads)
    needed = setting.rows * sum(slots) * shape.slot_bytes
    if needed > SHARE * free_bytes(clock.device):
        return {"skipped": f"needs {needed / 1e9:.0f} GB"}
    made = layer(setting.store, slots, shape, clock.device, setting.rows)
    plan = TritonPlan(made.prefixes, made.tail, made.spec)
    contenders: dict[str, Run] = {"winnow": lambda: plan.run(made.query)}
    problems: dict[str, str] = {}
    if setting.store == "full":
        found, problems = _peers(_joined(made, shape))
        contenders |= found
    times = clock.times(contenders)
    size = made.nbytes()
    speed = size / times.median("winnow") / 1e6
    return {
        "ms": times.median("winnow"),
        "bytes": size,
        "gb_s": speed,
        "share": speed / ceiling,
        "captured": sorted(times.captured),
        "host_us": host_us(contenders["winnow"], clock),
        "peers": {name: times.ratio(name, "winnow") for name in contenders if name != "winnow"},
        "failed": problems,
    }


def _peers(slots: Slots) -> tuple[dict[str, Run], dict[str, str]]:
    """Peers that can attend over these slots and agree with each other, and why others cannot."""
    expected, runs, problems = _expected(slots), {}, {}
    for name, make in PEERS.items():
        # Somebody else's library fails in its own ways; the others are to be measured all the same.
        try:
            run = make(slots)
            if run is None:
                continue
            error = (_flat(run(), slots) - expected).abs().max()
            if error > 0.02:
                problems[name] = f"differs by {float(error):.3g}"
            else:
                runs[name] = run
        except Exception as problem:
            problems[name] = f"{type(problem).__name__}: {problem}".splitlines()[0][:200]
    return runs, problems


def _expected(slots: Slots) -> Tensor:
    """fp32 [R·H·G, D], one head after another."""
    parts = zip(slots.keys.split(slots.counts), slots.values.split(slots.counts), slots.queries, strict=True)
    return torch.cat([torch.softmax(slots.scale * q.float() @ k.float().T, 1) @ v.float() for k, v, q in parts])


def _flat(found: Any, slots: Slots) -> Tensor:
    """Output of a peer, which is in order of rows and query heads for all of them."""
    return found.float().reshape(-1, slots.keys.shape[1])


def _joined(made: Layer, shape: Shape) -> Slots:
    """The prefixes of all rows as one tensor; peers get no tail."""
    blocks = [prefix for prefix in made.prefixes if isinstance(prefix, DenseBlock)]
    counts = [int(count) for block in blocks for count in block.stops - block.starts]
    queries = made.query.reshape(len(blocks) * shape.heads, shape.group, shape.dim)
    keys, values = (torch.cat([getattr(block, side) for block in blocks]) for side in ("keys", "values"))
    return Slots(keys, values, counts, queries, shape.heads)


def settings(lengths: Sequence[int], rows: Sequence[int], stores: Sequence[str]) -> list[Setting]:
    """Dense layers of all lengths and rows, even and skewed; packed ones of a middle length."""
    dense = [Setting("full", n, r, skewed) for n in lengths for r in rows for skewed in (False, True)]
    middle = lengths[len(lengths) // 2]
    return [*dense, *(Setting(store, middle, r) for store in stores for r in rows[:2])]
