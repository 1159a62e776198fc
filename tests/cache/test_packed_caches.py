"""Packed caches where dense ones go: in files, chunks, forks, beams, padded rows and later turns."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import winnow
from support.families import prompt
from support.packed_caches import (
    GREEDY,
    HEADS,
    LAYERS,
    N,
    by_scores,
    composed,
    dense_logits,
    fed,
    filled,
    prefix_bytes,
)
from winnow import CompressedCache
from winnow.errors import CacheError

pytestmark = pytest.mark.usefixtures("one_thread")


def test_coalitions_are_formed_of_dense_slots_only(packed_model: Any) -> None:
    masks = torch.ones(2, LAYERS, HEADS, dtype=torch.bool)
    for store in ("spark", "think+kivi", "bits(4)"):
        past = filled(packed_model, prompt(length=N), winnow.method(f"full+{store}"))
        with pytest.raises(CacheError, match="leave spark, think, bits and kivi out"):
            past.coalitions(masks, 8)


FEW = [
    "snapkv+spark(0.5)+bits(8)",
    "adakv+think(0.5)+kivi(4)",
    "snapkv+bits(8, 4)",
    "snapkv+bits(4, round=queries, scales=signed, dense_first=2)",
    "pyramidkv+spark-p(0.9)",
    "knorm+spark(0.8, values=0.5, recovery=gaussian)",
    "adakv+spark-g(5)+bits(8, 4)",
    "adakv+think(0.5)+bits(3, group=32)",
]


@pytest.mark.parametrize("name", FEW)
def test_a_file_answers_as_the_context_it_was_saved_from(packed_model: Any, name: str, tmp_path: Path) -> None:
    context = winnow.compress(packed_model, prompt(length=N), composed(name))
    path = context.save(tmp_path / "context.safetensors")
    loaded = winnow.load_context(path, packed_model)
    assert loaded.stats() == context.stats()
    assert str(loaded.method) == str(context.method)
    for layer in range(LAYERS):
        assert [k.tolist() for k in loaded.kept(layer)] == [k.tolist() for k in context.kept(layer)]
    for seed in (9, 10):
        ids = torch.cat([context.input_ids, prompt(length=5, seed=seed)], 1)
        one = packed_model.generate(ids, past_key_values=context.cache(), **GREEDY)
        assert torch.equal(packed_model.generate(ids, past_key_values=loaded.cache(), **GREEDY), one)
        new = ids[:, N:]
        assert torch.equal(fed(packed_model, loaded.cache(), new), fed(packed_model, context.cache(), new))
    if not by_scores(name):
        assert loaded.save(tmp_path / "again").read_bytes() == path.read_bytes()
    overhead = path.stat().st_size - sum(context.stats().bytes.values())
    assert overhead < 40_000, "a file holds what memory does, and a header"


@pytest.mark.parametrize("name", FEW)
def test_chunked_prefill_holds_the_same(packed_model: Any, name: str) -> None:
    ids = prompt(length=N)
    one, parts = (
        winnow.compress(packed_model, ids, composed(name)),
        winnow.compress(packed_model, ids, composed(name), chunk_size=41),
    )
    assert one.stats().bytes == parts.stats().bytes
    new = prompt(length=3, seed=2)
    torch.testing.assert_close(
        fed(packed_model, one.cache(), new), fed(packed_model, parts.cache(), new), atol=2e-3, rtol=2e-3
    )


@pytest.mark.parametrize("name", FEW)
def test_forks_share_the_prefix_and_nothing_else(packed_model: Any, name: str) -> None:
    past = filled(packed_model, prompt(length=N), composed(name))
    fork = copy.deepcopy(past)
    assert fork.compressed_layers()[1].prefixes[0] is past.compressed_layers()[1].prefixes[0]
    one, two = prompt(length=4, seed=8), prompt(length=4, seed=9)
    first, second = fed(packed_model, past, one), fed(packed_model, fork, two)
    again = filled(packed_model, prompt(length=N), composed(name))
    assert torch.equal(fed(packed_model, copy.deepcopy(again), one), first)
    assert torch.equal(fed(packed_model, copy.deepcopy(again), two), second)


@pytest.mark.parametrize("name", FEW)
def test_beams_read_one_prefix_as_single_rows_do(packed_model: Any, name: str) -> None:
    method, ids = composed(name), prompt(length=N)
    past = CompressedCache(packed_model, method)
    out = packed_model.generate(
        ids,
        past_key_values=past,
        num_beams=3,
        num_return_sequences=3,
        return_dict_in_generate=True,
        output_scores=True,
        length_penalty=0.0,
        **GREEDY,
    )
    assert len({id(prefix) for prefix in past.compressed_layers()[0].prefixes}) == 1
    alone = filled(packed_model, ids, method)
    assert past.stats().slots == alone.stats().slots
    with torch.no_grad():
        start = packed_model(ids, use_cache=False).logits[:, -1:]
    for sequence, score in zip(out.sequences, out.sequences_scores, strict=True):
        logits = torch.cat([start, fed(packed_model, copy.deepcopy(alone), sequence[None, N:-1])], 1).log_softmax(-1)
        total = logits[0].gather(-1, sequence[N:, None]).sum()
        torch.testing.assert_close(score, total, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("name", FEW)
def test_left_padded_rows_are_packed_and_answer_as_if_alone(packed_model: Any, name: str) -> None:
    method, lengths = composed(name), [N, 97, 33, 5]
    rows = [prompt(length=length, seed=length) for length in lengths]
    ids, mask = torch.zeros(len(rows), N, dtype=torch.int64), torch.zeros(len(rows), N, dtype=torch.int64)
    for index, row in enumerate(rows):
        ids[index, N - row.shape[1] :], mask[index, N - row.shape[1] :] = row[0], 1
    past = CompressedCache(packed_model, method)
    together = packed_model.generate(ids, attention_mask=mask, past_key_values=past, **GREEDY)
    held = 0
    for index, row in enumerate(rows):
        alone = CompressedCache(packed_model, method)
        expected = packed_model.generate(row, past_key_values=alone, **GREEDY)
        assert torch.equal(together[index, N:], expected[0, row.shape[1] :])
        for layer in range(LAYERS):
            found = [k.tolist() for k in past.kept(layer, row=index)]
            assert found == [k.tolist() for k in alone.kept(layer)]
        held += prefix_bytes(alone)
    assert prefix_bytes(past) == held


@pytest.mark.parametrize("name", FEW)
def test_a_second_turn_is_attended_to_as_token_by_token(packed_model: Any, name: str) -> None:
    """Several tokens at once, and then generation, over a packed cache that already holds later tokens."""
    method, ids = composed(name), prompt(length=N + 12)
    at_once, singly = filled(packed_model, ids[:, :N], method), filled(packed_model, ids[:, :N], method)
    with torch.no_grad():
        first = packed_model(ids[:, N : N + 5], past_key_values=at_once).logits
        second = packed_model(ids[:, N + 5 :], past_key_values=at_once).logits
    expected = fed(packed_model, singly, ids[:, N:])
    torch.testing.assert_close(torch.cat([first, second], 1), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(expected, dense_logits(packed_model, at_once, ids, N), atol=1e-4, rtol=1e-4)
    turn = torch.cat([ids, prompt(length=3, seed=4)], 1)
    out = packed_model.generate(turn, past_key_values=at_once, **GREEDY)
    assert torch.equal(out, packed_model.generate(turn, past_key_values=singly, **GREEDY))


@pytest.mark.parametrize("length", [1, 3, 8, 9, 40])
@pytest.mark.parametrize("name", FEW)
def test_short_prompts(packed_model: Any, name: str, length: int) -> None:
    """Prompts no longer than the window, which may stay dense as a whole."""
    ids = prompt(length=length + 2)
    past = filled(packed_model, ids[:, :length], composed(name))
    found = fed(packed_model, past, ids[:, length:])
    torch.testing.assert_close(found, dense_logits(packed_model, past, ids, length), atol=1e-4, rtol=1e-4)
