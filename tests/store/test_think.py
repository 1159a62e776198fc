"""ThinK against the paper in float64, and against kvpress."""

from __future__ import annotations

import importlib.util
import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.channel_definitions import think_channels
from support.dense_attention import DTYPES
from support.launcher import COMMANDS, launcher
from support.packed_slots import DIMS, WINDOW, layer_of, packed_in, selected, slots_of
from winnow.store import Packed, Think

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dims", DIMS)
def test_think_drops_the_same_channels_of_all_slots_of_a_head(dims: tuple[int, int], dtype: torch.dtype) -> None:
    view, selection = layer_of(*dims, dtype=dtype, length=40, seed=1), selected([30, 11], 40)
    for ratio, queries in ((0.5, 32), (0.3, 6), (0.8, 1)):
        block = Packed(Think(ratio=ratio, queries=queries)).pack(view, selection, WINDOW)
        expected = think_channels(view, selection, ratio, queries)
        channels = packed_in(block).keys.channels
        assert channels is not None
        assert channels.tolist() == expected
        for slot in slots_of(block, view, selection, WINDOW):
            key = slot.key.copy()
            if not slot.recent:
                key[[j for j in range(dims[0]) if j not in expected[slot.head]]] = 0
            np.testing.assert_array_equal(slot.found_key, key)
            np.testing.assert_array_equal(slot.found_value, slot.value)


def test_think_takes_one_index_per_kept_channel_of_a_head() -> None:
    view, selection = layer_of(128, dtype=torch.bfloat16), selected([8, 17], 24, 0)
    kinds = packed_in(Packed(Think(ratio=0.4)).pack(view, selection, 0)).bytes()
    assert kinds == {"keys": 25 * 77 * 2, "values": 25 * 256, "indices": 3 * 8 + 2 * 77 * 2}


PEER_THINK = """
import json, sys
import numpy as np
import torch
from kvpress import ThinKPress
from support.peer_selections import Layer, attention_module
data = np.load(sys.argv[1])
found = []
for case in json.loads(str(data["cases"])):
    queries, keys, values = (torch.from_numpy(data[f"{case['name']}-{part}"]) for part in ("queries", "keys", "values"))
    heads, length, dim = keys.shape
    module = attention_module(case, Layer(queries, keys, values, torch.zeros(len(queries), dim, dim)))
    ones = torch.ones(1, length, dim)
    press = ThinKPress(key_channel_compression_ratio=case["ratio"], window_size=case["window"])
    hidden = queries.transpose(0, 1).reshape(1, length, -1)
    options = {"hidden_states": hidden, "position_embeddings": (ones, torch.zeros_like(ones))}
    pruned, _ = press.compress(module, hidden, keys[None].clone(), values[None], None, options)
    gone = (pruned[0] == 0).all(1)
    assert torch.equal(gone[:, None].expand_as(keys), pruned[0] == 0)
    found.append([(~row).nonzero()[:, 0].tolist() for row in gone])
print(json.dumps(found))
"""


def test_think_keeps_the_channels_of_kvpress(tmp_path: Path) -> None:
    """In a process of its own, because importing kvpress replaces functions of transformers; no slot is evicted."""
    if importlib.util.find_spec("kvpress") is None:
        pytest.skip("kvpress is not installed: pip install --no-deps kvpress==0.5.5 and what it imports")
    views = {"small": layer_of(20, length=50), "grouped": layer_of(128, length=80, heads=4, group=4, seed=9)}
    cases: list[dict[str, Any]] = [
        {"name": name, "ratio": ratio, "window": window, "layer": 0, "layers": 4}
        | {"heads": view.keys.shape[0], "group": view.queries.shape[0] // view.keys.shape[0]}
        for (name, view), ratio, window in product(views.items(), [0.3, 0.5, 0.8], [8, 32])
    ]
    parts = ("queries", "keys", "values")
    arrays = {f"{name}-{part}": getattr(view, part).numpy() for (name, view), part in product(views.items(), parts)}
    np.savez(tmp_path / "cases.npz", cases=np.array(json.dumps(cases)), **arrays)
    run = launcher(COMMANDS).python(PEER_THINK, str(tmp_path / "cases.npz"))
    if "ModuleNotFoundError" in run.stderr or "PackageNotFoundError" in run.stderr:
        pytest.skip(f"kvpress cannot be imported: {run.stderr.strip().splitlines()[-1]}")
    assert run.returncode == 0, run.stderr
    for case, expected in zip(cases, json.loads(run.stdout.strip().splitlines()[-1]), strict=True):
        view = views[case["name"]]
        heads, length, _ = view.keys.shape
        everything = selected([length] * heads, length, 0)
        block = Packed(Think(ratio=case["ratio"], queries=case["window"])).pack(view, everything, 0)
        channels = packed_in(block).keys.channels
        assert channels is not None
        assert channels.tolist() == expected


def test_of_channels_that_score_the_same_the_lower_ones_stay() -> None:
    view = layer_of(20, 20, length=24)
    view = view._replace(keys=torch.ones_like(view.keys), queries=torch.ones_like(view.queries))
    found = Think(ratio=0.5).choose(view, selected([12, 9], 24), None)
    assert found.columns is not None
    assert found.columns.tolist() == [list(range(10))] * 2
