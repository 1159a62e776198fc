"""Any method, any lengths, any padding: rows decode as dense attention over what they kept."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import winnow
from support.families import build, prompt
from support.oracle import masked_logits
from support.ready import METHODS, UNBUDGETED, ready

STEPS = 3
MODEL = build("llama", num_hidden_layers=2)
MODEL.set_attn_implementation("winnow")


@st.composite
def settings_of_a_batch(draw):
    lengths = draw(st.lists(st.integers(1, 30), min_size=1, max_size=3))
    name = draw(st.sampled_from(METHODS))
    budget = None if name in UNBUDGETED else draw(st.integers(16, 40) | st.sampled_from(["5%", "60%", "100%"]))
    chunk = draw(st.none() | st.integers(1, max(lengths)))
    return lengths, name, budget, chunk


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(settings_of_a_batch())
def test_rows_decode_as_dense_attention_over_what_they_kept(setting):
    lengths, name, budget, chunk = setting
    longest = max(lengths)
    method = ready(name, budget, (2, 2))
    rows = [prompt(length=n + STEPS, seed=i) for i, n in enumerate(lengths)]
    ids, mask = torch.zeros(len(rows), longest + STEPS, dtype=torch.int64), None
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, longest + STEPS - row.shape[1] :], mask[i, longest + STEPS - row.shape[1] :] = row[0], 1
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    cache = winnow.CompressedCache(MODEL, method, prompt_length=longest)
    logits = []
    starts = [*range(0, longest, chunk or longest), *range(longest, longest + STEPS)]
    with torch.no_grad():
        for start, stop in zip(starts, [*starts[1:], longest + STEPS], strict=True):
            part = slice(start, stop)
            out = MODEL(
                ids[:, part], attention_mask=mask[:, :stop], position_ids=positions[:, part], past_key_values=cache
            )
            logits.append(out.logits[:, -1:])
    last = torch.cat(logits[-STEPS:], dim=1)
    assert torch.isfinite(last).all()
    for i, (row, n) in enumerate(zip(rows, lengths, strict=True)):
        expected = masked_logits(MODEL, row, n, lambda layer, i=i: cache.kept(layer, row=i))[0, n:]
        torch.testing.assert_close(last[i], expected, atol=1e-5, rtol=1e-5)
        for layer in range(2):
            _check_kept(cache.kept(layer, row=i), n, None if budget is None else budget)


def _check_kept(kept, length: int, budget) -> None:
    for positions in kept:
        assert positions.tolist() == sorted(set(positions.tolist()))
        assert not len(positions) or 0 <= positions[0] <= positions[-1] < length
    if budget is None or (isinstance(budget, int) and budget >= length):
        assert all(len(positions) == length for positions in kept)


def test_an_integer_budget_is_the_exact_mean_number_of_slots():
    for name in ("snapkv", "adakv", "pyramidkv", "ada-pyramidkv", "knorm", "random", "h2o"):
        for budget in (8, 9, 13, 29):
            cache = winnow.CompressedCache(MODEL, winnow.method(name, budget=budget))
            with torch.no_grad():
                MODEL(prompt(length=60), past_key_values=cache)
            assert sum(map(sum, cache.stats().slots)) == budget * 2 * 2, (name, budget)


@pytest.mark.parametrize("size", ["6KiB", "12 kB", "0.02MiB"])
def test_a_budget_in_bytes_is_met_within_one_percent_or_one_slot(size):
    number = float("".join(c for c in size if c.isdigit() or c == "."))
    allowed = number * {"K": 1024, "k": 1000, "M": 1024**2}[size.strip("0123456789. ")[0]]
    cache = winnow.CompressedCache(MODEL, winnow.method("adakv", budget=size))
    with torch.no_grad():
        MODEL(prompt(length=200), past_key_values=cache)
    kinds = cache.stats().bytes
    held = kinds["keys"] + kinds["values"] + kinds["indices"]
    slot = 2 * 16 * 4 + 4
    # Offsets and lengths are a few dozen bytes a layer, whatever the budget.
    assert allowed - slot - 0.01 * allowed <= held <= allowed + 2 * 4 * 8


def test_same_input_same_kept_set():
    def run():
        cache = winnow.CompressedCache(MODEL, winnow.method("adakv", budget=15))
        with torch.no_grad():
            MODEL(prompt(length=100), past_key_values=cache)
        return [[head.tolist() for head in cache.kept(layer)] for layer in range(2)]

    assert run() == run()
