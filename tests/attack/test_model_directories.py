"""Directories of models: configuration, tokenizer and weights cut, flipped, swapped or missing.

Each is either loaded, or refused by an error of winnow's own in one short line; none runs with weights that are random
because its files do not hold them.
"""

from __future__ import annotations

import json
import random
import shutil

import pytest
import torch

from support.attack import seeds
from winnow.bundled import MODEL_PATH
from winnow.commands.failures import readable
from winnow.errors import ModelError
from winnow.models import load_model, open_model

pytestmark = pytest.mark.usefixtures("one_thread")

FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")
VALUES = (None, True, -1, 0, 1.5, 7, 10**30, "", "text", [], [1], {}, {"a": 1}, "[" * 300 + "]" * 300)


def damaged(rng, name, content):
    kind = rng.choice(("cut", "flipped", "gone", "swapped", "nested", "empty"))
    if kind == "cut":
        return content[: rng.randrange(len(content))]
    if kind == "flipped":
        changed = bytearray(content)
        # Where the structure is, rather than somewhere in the weights.
        changed[rng.randrange(min(len(changed), 4000))] ^= 1 << rng.randrange(8)
        return bytes(changed)
    if kind == "gone":
        return None
    if kind == "nested":
        return b'{"a":' * 50_000
    if kind == "swapped" and name.endswith(".json"):
        value = json.loads(content)
        value[rng.choice(sorted(value))] = rng.choice(VALUES)
        return json.dumps(value).encode()
    return b""


@pytest.mark.parametrize("seed", seeds(12, 200))
def test_damaged_directories(tmp_path, seed):
    rng = random.Random(f"model-{seed}")
    for file in MODEL_PATH.iterdir():
        if file.name in FILES:
            shutil.copy(file, tmp_path)
    name = FILES[seed % len(FILES)]
    content = damaged(rng, name, (MODEL_PATH / name).read_bytes())
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    try:
        model = load_model(open_model(tmp_path), "cpu", "auto")
    except ModelError as found:
        problem = str(found)
    else:
        assert all(bool(torch.isfinite(weight).all()) for weight in model.parameters())
        return
    assert "\n" not in problem
    assert len(readable(problem)) < 1000
