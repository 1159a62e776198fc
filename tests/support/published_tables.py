"""Tables of head scores as others publish them, of a model of 3 layers, 4 query heads and 2 KV heads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

R2 = "Tiny_retrieval_reasoning_heads.json"
R = "Tiny_retrieval_heads.json"
DUO = "Tiny.tsv"


def write_published_tables() -> None:
    """Writes R2, R, DUO, an unnamed table and those of two CoKV tasks into the current directory."""
    places = [(layer, head) for layer in range(3) for head in range(4)]
    _write(R2, {f"{layer}-{head}": [layer + head, layer + head + 1] for layer, head in places})
    _write(R, {f"{layer}-{head}": [layer * head] for layer, head in places})
    Path(DUO).write_text("1\t0\n0.5\t0.25\n0.75\t-0.001\n")
    _write("unnamed.json", {"0-0": [1]})
    for task, factor in (("lcc", 1.0), ("trec", 3.0)):
        for size, coalition in ((2, (0, 1, 0, 0, 1, 0)), (3, (1, 0, 1, 0, 0, 1))):
            _write(f"cc_llama3_{task}_{size}.json", _cokv(coalition, factor * size))


def _write(name: str, content: object) -> None:
    Path(name).write_text(json.dumps(content))


def _cokv(coalition: tuple[int, ...], u: float) -> dict[str, object]:
    """Two samples: the coalition, and one that every other player but as many is in."""
    inside = np.array(coalition)
    other = 1 - inside if 2 * inside.sum() == 6 else np.roll(inside, 1)
    third = np.array([1] * 6) - np.clip(inside + other, 0, 1)
    drawn = [inside, other] + ([third] if 0 < third.sum() == inside.sum() else [])
    gains = [u, -u / 2, u / 4]
    return {
        "n_players": 6,
        "layers": 3,
        "kv_heads": 2,
        "sampling_count": len(drawn),
        "cc_left": sum(gain * one for gain, one in zip(gains, drawn, strict=False)).tolist(),
        "count_left": sum(drawn).tolist(),
        "cc_right": sum(-gain * (1 - one) for gain, one in zip(gains, drawn, strict=False)).tolist(),
        "count_right": sum(1 - one for one in drawn).tolist(),
    }
