"""Contexts on disk, as this process or another one reads them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import winnow
from support.families import prompt

GREEDY = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}


def answer(model, context, mask=None):
    rows = context.input_ids.shape[0]
    ids = torch.cat([context.input_ids, prompt(rows=rows, length=5, seed=9)], dim=1)
    whole = None if mask is None else torch.cat([mask, torch.ones(rows, 5, dtype=torch.int64)], dim=1)
    return model.generate(ids, attention_mask=whole, past_key_values=context.cache(), **GREEDY)


def prefix_tensors(context):
    prefixes = [p for layer in context.cache().compressed_layers() for p in layer.distinct_prefixes()]
    return [tensor for p in prefixes for tensor in (p.block.keys, p.block.values, p.positions)]


def mapped(path) -> list[tuple[int, int]]:
    """Addresses at which this process has a file mapped."""
    lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(f" {path}")]
    return [tuple(int(end, 16) for end in line.split()[0].split("-")) for line in lines]


def rollup(path) -> dict[str, int]:
    """kB of a file's mappings in this process, by kind."""
    kinds: dict[str, int] = {}
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = line.endswith(f" {path}")
        elif inside and line.endswith(" kB"):
            name, size, _ = line.split()
            kinds[name.rstrip(":")] = kinds.get(name.rstrip(":"), 0) + int(size)
    return kinds


def refused(path, model, expected: str, **options) -> None:
    with pytest.raises(winnow.ContextError, match=expected):
        winnow.load_context(path, model, **options)
