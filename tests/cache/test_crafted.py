"""Contexts that somebody crafted, with right checksums: refused in words before a kernel sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import winnow
from support.contexts import refused
from support.families import prompt
from support.small_caches import N
from winnow.cache import disk
from winnow.cache.container import write_container

Tensors = dict[str, Tensor]
Change = Callable[[dict[str, Any], Tensors], None]
FIRST = "layers.0.prefixes.0."


def crafted(model: Any, path: Any, method: winnow.Method, change: Change, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The path of a context that was changed before it was written."""

    def write(path: Any, facts: Any, tensors: Any, overwrite: bool) -> Any:
        change(facts, tensors)
        return write_container(path, facts, tensors, overwrite)

    monkeypatch.setattr(disk, "write_container", write)
    saved = winnow.compress(model, prompt(length=N), method).save(path)
    monkeypatch.undo()
    return saved


def put(name: str, make: Callable[[Tensor], Tensor]) -> Change:
    """Another tensor in place of one."""

    def change(facts: dict[str, Any], tensors: Tensors) -> None:
        tensors[name] = make(tensors[name].clone())

    return change


def fact(*path: Any, value: Any) -> Change:
    """Another fact in place of one."""

    def change(facts: dict[str, Any], tensors: Tensors) -> None:
        inside: Any = facts
        for step in path[:-1]:
            inside = inside[step]
        inside[path[-1]] = value

    return change


def of_prefix(name: str, value: Any) -> Change:
    """Another fact of the first prefix's block."""
    return fact("layers", 0, "full", "prefixes", 0, "facts", name, value=value)


def swapped(first: int, second: int) -> Callable[[Tensor], Tensor]:
    def make(tensor: Tensor) -> Tensor:
        tensor[[first, second]] = tensor[[second, first]]
        return tensor

    return make


def wide_channels(facts: dict[str, Any], tensors: Tensors) -> None:
    """As many channels per head as the scratch of a kernel never holds."""
    slots = tensors[f"{FIRST}parts.0.keys.entries.data"].shape[0]
    tensors[f"{FIRST}parts.0.keys.channels"] = torch.zeros(2, 20_000, dtype=torch.int16)
    tensors[f"{FIRST}parts.0.keys.entries.data"] = torch.zeros(slots, 20_000)


def keys_as_values(facts: dict[str, Any], tensors: Tensors) -> None:
    """Values that say they are keys with one channel."""
    slots = tensors[f"{FIRST}parts.0.values.entries.data"].shape[0]
    told = facts["layers"][0]["full"]["prefixes"][0]["facts"]
    told["parts.0.values.kind"] = "keys"
    tensors[f"{FIRST}parts.0.values.channels"] = torch.zeros(2, 1, dtype=torch.int16)
    tensors[f"{FIRST}parts.0.values.entries.data"] = torch.zeros(slots, 1)
    told.pop("parts.0.values.channels", None)


THINK: dict[str, Change] = {
    "channels of keys must (be in|ascend)": wide_channels,
    r'layer 0: parts\[0\].values.kind must be "values", not "keys"': keys_as_values,
}

DENSE: dict[str, Change] = {
    "positions must ascend in every head": put(f"{FIRST}positions", swapped(0, 1)),
    "positions must be in 0 ... 39": put(f"{FIRST}positions", lambda p: p + 40),
    "positions are torch.int64": put(f"{FIRST}positions", lambda p: p.long()),
    r"\(heads, D, Dv, dtype\)": fact("layers", 0, "full", "key_dim", value=64),
    "a layer has 4096 KV heads": fact("layers", 0, "full", "heads", value=4096),
    r"layers\[0\].full.heads must be a whole number from 1 .*, not -1": fact("layers", 0, "full", "heads", value=-1),
    "seen 41 tokens": fact("layers", 0, "full", "seen", value=41),
    "its header cannot be read": fact("tokens", value=1e999),
    "a row has a prefix beyond": fact("layers", 0, "full", "rows", value=[1]),
    "the layer has 2 rows": fact("layers", 0, "full", "rows", value=[0, 0]),
    "a prefix is longer than the 40 tokens": fact("layers", 0, "full", "prefixes", 0, "length", value=99),
    "the layer is of 'load'": fact("layers", 0, "full", "dtype", value="load"),
    'no "model.wings" belongs there': fact("model", "wings", value=2),
    r"model must be an object, not \[\]": fact("model", value=[]),
    "the layer has unknown more": lambda _, tensors: tensors.update({"layers.0.more": torch.zeros(3)}),
    "a tensor 'extra' that belongs nowhere": lambda _, tensors: tensors.update(extra=torch.zeros(3)),
    "its tokens are not": put("input_ids", lambda ids: ids[:, 1:].contiguous()),
    "a token is negative": put("input_ids", lambda ids: -ids - 1),
    "heads_per_layer has 2 layers": lambda facts, _: facts["layers"].pop(),
    "A budget": fact("method", "budget", value="many"),
}


@pytest.mark.parametrize("mistake", DENSE)
def test_a_dense_context_that_no_winnow_wrote(model, tmp_path, monkeypatch, mistake) -> None:
    method = winnow.method("adakv", budget=9, window=3, floor=0.0)
    refused(crafted(model, tmp_path / "c", method, DENSE[mistake], monkeypatch), model, mistake)


@pytest.mark.parametrize("mistake", THINK)
def test_channels_that_a_head_does_not_have(model, tmp_path, monkeypatch, mistake) -> None:
    method = winnow.method("snapkv+think(0.5)", budget=12, window=3)
    refused(crafted(model, tmp_path / "c", method, THINK[mistake], monkeypatch), model, mistake)
