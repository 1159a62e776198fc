"""Sizes of prompts that wait for their compression, against what caches really hold."""

from __future__ import annotations

import pytest
import torch

import winnow
from support.families import STARTING_ANEW, build, prompt
from winnow.evaluate.prompt_bytes import PromptBytes, prompt_bytes
from winnow.evaluate.shared import DenseReader

pytestmark = pytest.mark.usefixtures("one_thread")


def test_windows_grow_up_to_their_size() -> None:
    sizes = PromptBytes(token=100, query=10, windows=((7, 3), (20, 1)), states=5)
    assert [sizes.beside(tokens) for tokens in (1, 7, 8, 20, 21)] == [9, 33, 34, 46, 46]
    assert sizes.dense(8, 3) == 800 + 30 + 34
    assert sizes.dense(8, 30) == 800 + 80 + 34


@pytest.mark.parametrize(
    "family",
    ["llama", "gemma3_text", "gemma3n_text", "llama4_text", "qwen3_next", "lfm2", "falcon_h1", "jamba"],
)
@pytest.mark.parametrize("length", [5, 40])
def test_a_prompt_takes_what_is_told(family: str, length: int) -> None:
    model = build(family, **STARTING_ANEW.get(family, {}))
    model.set_attn_implementation("winnow")
    cache = winnow.CompressedCache(model, "full")
    with torch.no_grad():
        model(prompt(length=length), past_key_values=cache)
    assert prompt_bytes(model).dense(length, 0) == cache.stats().full_bytes


def test_queries_that_wait_are_counted() -> None:
    model = build("llama")
    model.set_attn_implementation("winnow")
    methods, held = [winnow.method(name) for name in ("snapkv(window=4) @ 12", "expectedattention @ 12")], []
    for method in methods:
        dense = DenseReader(model, [method]).read(prompt(length=40))
        held.append(sum(layer.arriving.nbytes() for layer in dense._cache.compressed_layers()))
    few, many = (method.queries_needed(40) for method in methods)
    assert few == 4 < many
    assert held[1] - held[0] == (many - few) * prompt_bytes(model).query
