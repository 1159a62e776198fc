"""Decoding compression of padded rows, beams, forks and joined caches."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

import winnow
from support.families import prompt
from support.fold_oracle import Expected
from support.folding import PROMPT, RULES, folding, run, same

pytestmark = pytest.mark.usefixtures("one_thread")


def padded(rows: list[Tensor], length: int) -> tuple[Tensor, Tensor]:
    """Rows [n] on the left of which there is padding, and the mask [R, length]."""
    ids = torch.zeros(len(rows), length, dtype=torch.int64)
    for into, row in zip(ids, rows, strict=True):
        into[length - len(row) :] = row
    return ids, torch.stack([torch.arange(length) >= length - len(row) for row in rows]).long()


@pytest.mark.parametrize(
    "name", ["adakv", "snapkv, shorter than its window", "tova", "h2o", "rkv", "kvec", "expectedattention"]
)
def test_rows_of_a_padded_batch_are_what_they_are_alone(model, name):
    rule, lengths, steps = RULES[name], [25, 3, 17], 18
    rows = [prompt(length=length + steps, seed=length)[0] for length in lengths]
    ids, mask = padded([row[:length] for row, length in zip(rows, lengths, strict=True)], max(lengths))
    cache = folding(model, rule)
    with torch.no_grad():
        model(ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0), past_key_values=cache)
        parts = []
        for step in range(steps):
            mask = torch.cat([mask, mask.new_ones(3, 1)], dim=1)
            now = torch.stack([row[length + step] for row, length in zip(rows, lengths, strict=True)])[:, None]
            positions = mask.sum(1, keepdim=True) - 1
            parts.append(model(now, attention_mask=mask, position_ids=positions, past_key_values=cache).logits)
    logits = torch.cat(parts, dim=1)
    for row, length in enumerate(lengths):
        expected = Expected(model, rule, rows[row], [length] + [1] * steps)
        expected.logits = expected.logits[length:]
        same(cache, row, logits[row], expected)


@pytest.mark.parametrize("name", ["adakv", "h2o", "kvec", "triattention"])
def test_padded_chunks_fold_row_by_row(model, name):
    rule = RULES[name]
    rows = [prompt(length=60, seed=seed)[0] for seed in (1, 2)]
    cache, got = folding(model, rule), [[], []]
    # New tokens of both rows at every step; where they differ, the shorter chunk is padded on the left.
    plan = [(20, 20), (3, 1), (1, 1), (6, 2), (1, 1), (1, 1), (1, 1), (2, 5), (1, 1), (1, 1), (1, 1)]
    at, mask = [0, 0], torch.zeros(2, 0, dtype=torch.int64)
    with torch.no_grad():
        for sizes in plan:
            new, valid = padded([rows[r][at[r] : at[r] + sizes[r]] for r in range(2)], max(sizes))
            mask = torch.cat([mask, valid], dim=1)
            positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -max(sizes) :]
            logits = model(new, attention_mask=mask, position_ids=positions, past_key_values=cache).logits
            for r in range(2):
                got[r].append(logits[r, max(sizes) - sizes[r] :])
                at[r] += sizes[r]
    for r in range(2):
        same(cache, r, torch.cat(got[r]), Expected(model, rule, rows[r][: at[r]], [sizes[r] for sizes in plan]))


@pytest.mark.parametrize("name", ["snapkv, shorter than its window", "h2o"])
@pytest.mark.parametrize("before", [3, 5, 8])
def test_beams_carry_their_queries_along(model, name, before):
    rule = RULES[name]
    ids = torch.cat([prompt(length=PROMPT + 30, seed=seed) for seed in (1, 2)])
    cache = folding(model, rule)
    run(model, cache, ids[:, : PROMPT + before], [PROMPT] + [1] * before)
    order = torch.tensor([1, 0, 1])
    cache.reorder_cache(order)
    later = torch.cat([prompt(length=12, seed=seed) for seed in (7, 8, 9)])
    logits = run(model, cache, later, [1] * 12)
    for row, source in enumerate(order.tolist()):
        whole = torch.cat([ids[source, : PROMPT + before], later[row]])
        expected = Expected(model, rule, whole, [PROMPT] + [1] * (before + 12))
        expected.logits = expected.logits[PROMPT + before :]
        same(cache, row, logits[row], expected)


def test_beam_search_and_several_sequences_generate(model):
    cache = folding(model, RULES["adakv"])
    out = model.generate(
        prompt(length=20),
        past_key_values=cache,
        max_new_tokens=30,
        num_beams=3,
        num_return_sequences=2,
        do_sample=False,
    )
    assert out.shape == (2, 50)
    assert cache.stats().rows == 3
    assert max(cache.stats().tail_tokens) <= 5


def test_forks_share_the_prefix_until_one_of_them_folds(model):
    rule = RULES["adakv"]
    ids = prompt(length=60)
    cache = folding(model, rule)
    run(model, cache, ids[:, :34], [PROMPT] + [1] * 4)
    fork = copy.deepcopy(cache)
    assert fork.layers[0].prefixes[0] is cache.layers[0].prefixes[0]
    logits = run(model, fork, ids[:, 34:], [1] * 26)
    assert [head.tolist() for head in cache.kept(0)] != [head.tolist() for head in fork.kept(0)]
    assert torch.equal(run(model, cache, ids[:, 34:], [1] * 26), logits)
    expected = Expected(model, rule, ids[0], [PROMPT] + [1] * 30)
    expected.logits = expected.logits[34:]
    same(fork, 0, logits[0], expected)


def test_contexts_and_joined_caches_fold(model):
    rule = RULES["adakv"]
    ids = [prompt(length=PROMPT, seed=seed) for seed in (1, 2)]
    method = winnow.method(rule.name, rule.budget)
    contexts = [winnow.compress(model, each, method, chunk_size=8, fold_every=rule.every) for each in ids]
    later = torch.cat([prompt(length=14, seed=seed) for seed in (3, 4)])
    together = winnow.CompressedCache.joined([context.cache() for context in contexts])
    logits = run(model, together, later, [1] * 14)
    for row in range(2):
        torch.testing.assert_close(run(model, contexts[row].cache(), later[row : row + 1], [1] * 14)[0], logits[row])
        expected = Expected(model, rule, torch.cat([ids[row][0], later[row]]), [PROMPT] + [1] * 14)
        expected.logits = expected.logits[PROMPT:]
        same(together, row, logits[row], expected)
