"""Prompts of layers with sliding windows: the models' own logits, and no mask of all queries by all tokens."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, StaticCache
from transformers.masking_utils import (
    and_masks,
    causal_mask_function,
    chunked_causal_mask_function,
    or_masks,
    packed_sequence_mask_function,
    padding_mask_function,
    sdpa_mask,
    sliding_window_bidirectional_mask_function,
    sliding_window_causal_mask_function,
)

from support.families import build, prompt
from winnow import CompressedCache
from winnow.cache import attention
from winnow.cache.attention import winnow_mask
from winnow.cache.window_mask import WindowMask

pytestmark = pytest.mark.usefixtures("one_thread")
WINDOW, TOKENS = 8, 43
FAMILIES = {
    "gemma2": {},
    "gemma3_text": {},
    "gpt_oss": {},
    "cohere2": {},
    "mistral": {"sliding_window": WINDOW},
    "gemma3n_text": {},
    "gemma4_text": {},
}
"""Families with a window of 8 in every second layer, or in all; with a cap, with sinks, and with shared keys."""
WHOLE, CHUNKS = [TOKENS], [5, 2, 20, 1, 15]
"""Tokens of a prompt that come at a time."""


@pytest.fixture
def masks(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """Shapes of masks of several queries that were made with all of their entries."""
    made: list[torch.Size] = []
    entries, ordinary = WindowMask.entries, attention.sdpa_mask

    def noted_entries(mask: WindowMask) -> Tensor:
        made.append(mask.shape)
        return entries(mask)

    def noted_mask(*args: Any, **kwargs: Any) -> Tensor | None:
        mask = ordinary(*args, **kwargs)
        if mask is not None and mask.shape[2] > 1:
            made.append(mask.shape)
        return mask

    monkeypatch.setattr(WindowMask, "entries", noted_entries)
    monkeypatch.setattr(attention, "sdpa_mask", noted_mask)
    return made


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return build(request.param, **FAMILIES[request.param])


def own_cache(model: PreTrainedModel) -> DynamicCache:
    return DynamicCache(config=model.config)


def compressed(model: PreTrainedModel) -> Any:
    """A compressed cache; where every layer has a window there is nothing to compress."""
    return (
        CompressedCache(model, "full")
        if "full_attention" in (getattr(model.config, "layer_types", None) or [])
        else own_cache(model)
    )


@torch.no_grad()
def logits(model: PreTrainedModel, by: str, ids: Tensor, parts: list[int], cache: Any, **options: Any) -> Tensor:
    """Logits [R, N, V] of a prompt that comes in parts."""
    model.set_attn_implementation(by)
    found, past = [], None if cache is None else cache(model)
    for part in ids.split(parts, dim=1):
        found.append(model(part, past_key_values=past, use_cache=past is not None, **options).logits)
    return torch.cat(found, dim=1)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("parts", [WHOLE, CHUNKS], ids=["whole", "chunks"])
@pytest.mark.parametrize("cache", [compressed, own_cache, None], ids=["compressed", "own", "none"])
def test_logits_are_those_of_eager_attention(
    model: PreTrainedModel, masks: list[torch.Size], cache: Any, parts: list[int], rows: int
) -> None:
    if cache is None and parts is not WHOLE:
        pytest.skip("chunks need a cache")
    ids = prompt(rows, TOKENS)
    expected = logits(model, "eager", ids, WHOLE, None)
    found = logits(model, "winnow", ids, parts, cache)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)
    if parts is WHOLE or cache is compressed:
        assert not masks  # chunks of a full layer in the model's own cache have one


@pytest.mark.parametrize("cache", [compressed, None], ids=["compressed", "none"])
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_padded_rows(model: PreTrainedModel, left: bool, cache: Any) -> None:
    ids, mask = prompt(2, TOKENS), torch.ones(2, TOKENS, dtype=torch.int64)
    mask[1, slice(19) if left else slice(TOKENS - 19, None)] = 0
    given = {"attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
    found, expected = (
        logits(model, *each, **given) for each in (("winnow", ids, WHOLE, cache), ("eager", ids, WHOLE, None))
    )
    there = mask.bool()
    torch.testing.assert_close(found[there], expected[there], atol=2e-5, rtol=2e-5)


def test_a_mask_that_hides_nothing_hides_nothing(model: PreTrainedModel, masks: list[torch.Size]) -> None:
    ids = prompt(2, TOKENS)
    found = logits(model, "winnow", ids, WHOLE, compressed, attention_mask=torch.ones_like(ids))
    assert not masks
    torch.testing.assert_close(found, logits(model, "winnow", ids, WHOLE, compressed))


@pytest.mark.parametrize("family", ["gemma2", "gemma3_text", "gpt_oss"])
@pytest.mark.parametrize("checkpoints", [False, True], ids=["", "checkpoints"])
def test_gradients_are_those_of_eager_attention(family: str, checkpoints: bool, masks: list[torch.Size]) -> None:
    model, ids, found = build(family).train(), prompt(2, TOKENS), []
    if checkpoints:
        model.gradient_checkpointing_enable()
    for by in ("winnow", "eager"):
        model.set_attn_implementation(by)
        model.zero_grad()
        model(ids, use_cache=False).logits.square().mean().backward()
        found.append([each.grad for each in model.parameters() if each.grad is not None])
    assert not masks
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("backend", [pytest.param("eager", marks=pytest.mark.slow), "aot_eager"])
def test_compiled_models(backend: str) -> None:
    model, ids = build("gemma3_text"), prompt(2, TOKENS)
    expected = logits(model, "eager", ids, WHOLE, None)
    model.set_attn_implementation("winnow")
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend)
    with torch.no_grad():
        found = compiled(ids, past_key_values=CompressedCache(model, "full")).logits
        plain = compiled(ids, use_cache=False).logits
    torch._dynamo.reset()
    for each in (found, plain):
        torch.testing.assert_close(each, expected, atol=2e-5, rtol=2e-5)


def test_a_static_cache() -> None:
    """It has empty slots behind the tokens, which a window does not know of."""
    model, ids = build("gemma2"), prompt(2, TOKENS)
    expected = logits(model, "eager", ids, WHOLE, None)

    def static(model: PreTrainedModel) -> StaticCache:
        return StaticCache(config=model.config, max_cache_len=60)

    for parts in (WHOLE, CHUNKS):
        torch.testing.assert_close(logits(model, "winnow", ids, parts, static), expected, atol=2e-5, rtol=2e-5)


def test_sequences_side_by_side_do_not_see_each_other() -> None:
    """Positions that begin anew, without a mask."""
    model, ids = build("gemma2"), prompt(1, TOKENS)
    positions = torch.cat([torch.arange(20), torch.arange(TOKENS - 20)])[None]
    found = logits(model, "winnow", ids, WHOLE, None, position_ids=positions)
    alone = [logits(model, "eager", part, [part.shape[1]], None) for part in ids.split([20, TOKENS - 20], dim=1)]
    torch.testing.assert_close(found, torch.cat(alone, dim=1), atol=2e-5, rtol=2e-5)


def asked(rows: int, queries: int, earlier: int, window: int, **options: Any) -> Any:
    """The mask of a chunk, of a cache that holds as many earlier tokens as the window may see, as transformers asks."""
    held = min(earlier, window - 1)
    given = {
        "mask_function": sliding_window_causal_mask_function(window),
        "local_size": window,
        "attention_mask": None,
        "q_offset": earlier,
        "kv_offset": earlier - held,
    }
    return winnow_mask(rows, queries, held + queries, **(given | options))


def plain(rows: int, queries: int, earlier: int, window: int) -> Tensor:
    """The same, by definition."""
    held = min(earlier, window - 1)
    seen = torch.zeros(rows, 1, queries, held + queries, dtype=torch.bool)
    for i in range(queries):
        seen[:, :, i, max(0, held + i + 1 - window) : held + i + 1] = True
    return seen


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(1, 3), st.integers(2, 30), st.integers(0, 40), st.integers(1, 33))
def test_entries(rows: int, queries: int, earlier: int, window: int) -> None:
    mask, expected = asked(rows, queries, earlier, window), plain(rows, queries, earlier, window)
    if queries < window and not earlier:
        assert mask is None
        return
    assert isinstance(mask, WindowMask)
    assert (mask.shape, mask.dtype, mask.device) == (expected.shape, expected.dtype, expected.device)
    assert mask.window == window
    assert torch.equal(mask & torch.ones(1, dtype=torch.bool), expected)
    assert mask.window is None


OPERATIONS: dict[str, Callable[[Tensor], Any]] = {
    "slice": lambda mask: mask[:, :, 3:, :5],
    "index": lambda mask: mask[1],
    "and": lambda mask: mask & mask.flip(-1),
    "not": lambda mask: ~mask,
    "to": lambda mask: mask.to(torch.float32),
    "expand": lambda mask: mask.expand(2, 4, -1, -1),
    "where": lambda mask: torch.where(mask, 0.0, -1.0),
    "stack": lambda mask: torch.stack([mask, mask]),
    "cat": lambda mask: torch.cat([mask, torch.zeros(2, 1, 9, 2, dtype=torch.bool)], dim=-1),
    "all": lambda mask: mask.all(-1),
    "clone": lambda mask: mask.clone(),
    "as a tensor": lambda mask: mask.as_subclass(Tensor),
    "masked_fill": lambda mask: torch.zeros(2, 3, 9, 16).masked_fill(mask, 1.0),
    "copy": copy.deepcopy,
    "pickle": lambda mask: pickle.loads(pickle.dumps(mask)),
    "numpy": lambda mask: torch.from_numpy(np.asarray(mask).copy()),
    "list": lambda mask: torch.tensor(mask.tolist()),
    "vmap": lambda mask: torch.vmap(lambda row: row.sum())(mask),
    "sdpa": lambda mask: torch.nn.functional.scaled_dot_product_attention(
        torch.ones(2, 1, 9, 4), torch.ones(2, 1, 16, 4), torch.arange(32.0).view(2, 1, 16, 1), attn_mask=mask
    ),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_work_on_the_entries(name: str) -> None:
    mask, ordinary = asked(2, 9, 20, WINDOW), plain(2, 9, 20, WINDOW)
    assert isinstance(mask, WindowMask)
    found, expected = OPERATIONS[name](mask), OPERATIONS[name](ordinary)
    assert type(found) is Tensor
    assert torch.equal(found, expected)


def test_what_asks_for_sizes_leaves_it_a_window() -> None:
    mask = asked(2, 9, 20, WINDOW)
    assert repr(mask) == "WindowMask([2, 1, 9, 16], window=8)"
    assert mask.dim() == 4
    assert mask.size(-1) == 16
    assert mask.to("cpu") is mask
    assert mask.window == WINDOW


def test_the_mask_of_the_last_queries() -> None:
    mask, ordinary = asked(2, 9, 20, WINDOW), plain(2, 9, 20, WINDOW)
    last, other = mask[:, :, -3:, :], mask[:, :, 4:][:, :, 2:]
    for each in (last, other):
        assert isinstance(each, WindowMask)
        assert each.shape == (2, 1, 3, 16)
        assert each.window == WINDOW
    last[0, 0, 1, 2] = ordinary[:, :, -2, 2] = True
    assert mask.window is other.window is None
    for found, expected in ((mask, ordinary), (last, ordinary[:, :, -3:]), (other, ordinary[:, :, -3:])):
        assert torch.equal(found & True, expected)
    for cut in (mask[:, :, -3:-1], mask[:, :, :4], mask[:, :, ::2], mask[:1]):
        assert type(cut) is Tensor


@pytest.mark.parametrize("kept", [1, 3])
@pytest.mark.parametrize("cache", [compressed, own_cache, None], ids=["compressed", "own", "none"])
def test_layers_that_leave_queries_out(masks: list[torch.Size], cache: Any, kept: int) -> None:
    model, ids = build("gemma4_text"), prompt(2, TOKENS)
    expected = logits(model, "eager", ids, WHOLE, None)[:, -kept:]
    found = logits(model, "winnow", ids, WHOLE, cache, logits_to_keep=kept)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)
    assert not masks


def test_changed_entries_count() -> None:
    """A model may hide more than the window does."""
    model, ids = build("gemma2", num_hidden_layers=1, layer_types=["sliding_attention"]), prompt(1, TOKENS)
    hiding: list[Tensor] = []

    def change(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        if model.config._attn_implementation == "eager":
            kwargs["attention_mask"][..., 30:, 29] = torch.finfo(torch.float32).min
        else:
            assert isinstance(kwargs["attention_mask"], WindowMask)
            kwargs["attention_mask"][..., 30:, 29] = False
        hiding.append(kwargs["attention_mask"])

    model.model.layers[0].register_forward_pre_hook(change, with_kwargs=True)
    found, expected = (logits(model, by, ids, WHOLE, None) for by in ("winnow", "eager"))
    assert len(hiding) == 2
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)


SHOWN = torch.ones(2, TOKENS, dtype=torch.bool)
OTHERS: dict[str, dict[str, Any]] = {
    "chunks": {"mask_function": chunked_causal_mask_function(WINDOW, torch.zeros(2, dtype=torch.int64))},
    "causal": {"mask_function": causal_mask_function},
    "both directions": {"mask_function": sliding_window_bidirectional_mask_function(WINDOW)},
    "images": {
        "mask_function": or_masks(sliding_window_causal_mask_function(WINDOW), lambda b, h, q, k: (q < 3) & (k < 3))
    },
    "more hidden": {"mask_function": and_masks(sliding_window_causal_mask_function(WINDOW), lambda b, h, q, k: k != 7)},
    "packed": {
        "mask_function": and_masks(
            sliding_window_causal_mask_function(WINDOW),
            packed_sequence_mask_function((torch.arange(TOKENS) > 20).int().expand(2, -1)),
        )
    },
    "padding within": {
        "mask_function": and_masks(sliding_window_causal_mask_function(WINDOW), padding_mask_function(SHOWN))
    },
    "another window": {"mask_function": sliding_window_causal_mask_function(WINDOW + 1)},
    "padding": {"attention_mask": torch.arange(TOKENS).expand(2, -1) > 2},
    "a short mask": {"attention_mask": SHOWN[:, :-1]},
    "asked for": {"allow_is_causal_skip": False},
    "empty slots": {"kv_length": TOKENS + 5, "attention_mask": torch.cat([SHOWN, SHOWN[:, :5]], dim=1)},
    "a place on a device": {"q_offset": torch.zeros((), dtype=torch.int64)},
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_masks_are_transformers(name: str) -> None:
    given = {"q_length": TOKENS, "kv_length": TOKENS, "local_size": WINDOW}
    given |= {"mask_function": sliding_window_causal_mask_function(WINDOW)} | OTHERS[name]
    found, expected = winnow_mask(2, **given), sdpa_mask(2, **({"allow_is_causal_skip": False} | given))
    assert not isinstance(found, WindowMask)
    if name == "causal":
        assert found is None or torch.equal(found, expected)
    else:
        assert torch.equal(found, expected)


def test_a_longer_mask_counts_where_there_are_tokens() -> None:
    mask = torch.ones(2, TOKENS + 9, dtype=torch.bool)
    mask[:, :4] = mask[:, TOKENS:] = False
    assert isinstance(asked(2, 9, TOKENS - 9, WINDOW, attention_mask=mask), WindowMask)
    mask[1, TOKENS - 12] = False
    hidden = asked(2, 9, TOKENS - 9, WINDOW, attention_mask=mask)
    assert type(hidden) is Tensor
    assert not hidden[1, ..., 4].any()
