"""Windows whose tokens take each other's place: attention over them, and all ways in which tokens come and go."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from itertools import product
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from support.families import SLIDING, build, prompt
from support.turns import each_value
from winnow import CacheError, CompressedCache
from winnow.cache.sliding_layer import CompactSlidingLayer
from winnow.cache.window_ring import WindowRing
from winnow.kernels import native
from winnow.kernels.interface import AttentionSpec

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(native.library() is None, reason="the native library was not built"),
]
FAMILIES = ("gemma2", "gemma3_text", "olmo3", "gpt_oss")
SHARING = ("gemma3n_text", "gemma4_text")
WINDOW, PROMPT = SLIDING["sliding_window"], 20
SOFTCAP = 3.0


def numbers(*sizes: int, seed: int) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


class Known:
    """Tokens of all times, and attention over the last W of them in float64."""

    def __init__(self, rows: int, heads: int, dims: tuple[int, int], window: int) -> None:
        self.keys, self.values = (torch.zeros(rows, heads, 0, dim) for dim in dims)
        self.window = window
        self.seed = 0

    def more(self, tokens: int) -> tuple[Tensor, Tensor]:
        """New ones, [R, H, T, D] and [R, H, T, Dv]."""
        self.seed += 2
        new = []
        for place, held in enumerate((self.keys, self.values)):
            rows, heads, _, dim = held.shape
            new.append(numbers(rows, heads, tokens, dim, seed=self.seed + place))
        self.keys, self.values = (torch.cat([held, each], 2) for held, each in zip(self.held, new, strict=True))
        return new[0], new[1]

    @property
    def held(self) -> tuple[Tensor, Tensor]:
        return self.keys, self.values

    def last(self, tokens: int) -> tuple[Tensor, Tensor]:
        first = max(0, self.keys.shape[2] - tokens)
        return self.keys[:, :, first:], self.values[:, :, first:]

    def forget(self, tokens: int) -> None:
        self.keys, self.values = (held[:, :, : held.shape[2] - tokens] for held in self.held)

    def attended(self, query: Tensor, spec: AttentionSpec, later: int = 0) -> Tensor:
        """[R, Hq, 1, D] -> [R, 1, Hq, Dv], of a query before so many tokens that came later."""
        tokens = self.keys.shape[2] - later
        keys, values = (each[:, :, max(0, tokens - self.window) : tokens].double() for each in self.held)
        group = query.shape[1] // keys.shape[1]
        keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
        logits = query.double() @ keys.transpose(2, 3) * spec.scaling
        if spec.softcap is not None:
            logits = spec.softcap * torch.tanh(logits / spec.softcap)
        weights = logits.exp()
        total = weights.sum(-1, keepdim=True)
        if spec.sinks is not None:
            total = total + spec.sinks.double().exp()[None, :, None, None]
        return (weights / total @ values).transpose(1, 2)


@given(
    rows=st.integers(1, 3),
    heads=st.integers(1, 3),
    group=st.integers(1, 5),
    dims=st.tuples(st.sampled_from([4, 20, 64]), st.sampled_from([4, 12, 64])),
    window=st.sampled_from([1, 2, 3, 7, 64, 100]),
    before=st.integers(0, 120),
    room=st.sampled_from([0, 5, 90]),
    capped=st.booleans(),
    sinks=st.booleans(),
    what=st.lists(
        st.sampled_from(["token", "token", "token", "trial", "back", "rows", "copy", "room", "order"]), max_size=90
    ),
)
def test_attention_is_over_the_last_tokens(
    rows: int,
    heads: int,
    group: int,
    dims: tuple[int, int],
    window: int,
    before: int,
    room: int,
    capped: bool,
    sinks: bool,
    what: list[str],
) -> None:
    known = Known(rows, heads, dims, window)
    known.more(before)
    spec = AttentionSpec(0.3, SOFTCAP if capped else None, numbers(heads * group, seed=1) if sinks else None)
    ring = WindowRing.of(*known.last(window - 1), window, before, room)
    came = False
    for seed, each in enumerate(["token", *what, "token"]):
        if each == "token":
            query = numbers(rows, heads * group, 1, dims[0], seed=1000 + seed)
            found = ring.attend(query, *known.more(1), spec)
            assert found is not None
            torch.testing.assert_close(found.double(), known.attended(query, spec), rtol=0, atol=1e-5)
            torch.testing.assert_close(ring.over(query, spec), found, rtol=0, atol=1e-6)
            again = AttentionSpec(0.2, spec.softcap, spec.sinks)
            torch.testing.assert_close(
                ring.over(query, again).double(), known.attended(query, again), rtol=0, atol=1e-5
            )
            assert all(map(torch.equal, ring.all_in_order(), known.last(window)))
        elif each == "trial":
            count = 2 + seed % 9
            query, new = numbers(rows, heads * group, count, dims[0], seed=1000 + seed), known.more(count)
            found = ring.attend_ahead(query, *new, spec)
            assert found is not None
            for token in range(count):
                expected = known.attended(query[:, :, token : token + 1], spec, later=count - 1 - token)
                torch.testing.assert_close(found[:, token : token + 1].double(), expected, rtol=0, atol=1e-5)
            right = seed % (count + 1)
            known.forget(count - right)
            ring.take(*new, right)
        elif each == "back" and came:
            known.forget(1)
            ring.back_to(ring.seen - 1)
            ring.back_to(ring.seen.copy())  # once is enough
        elif each == "rows":
            order = torch.randint(rows, (rows,), generator=torch.Generator().manual_seed(seed))
            ring = ring.selected(order)
            known.keys, known.values = known.keys[order], known.values[order]
        elif each == "copy":
            other, ring = ring, deepcopy(ring)
            other.keys.fill_(torch.nan)
        elif each == "room":
            ring.make_room(seed)
        came = each == "token" or (each == "trial" and right > 0)
        assert ring.seen.tolist() == [known.keys.shape[2]] * rows
        assert ring.keys.shape[2] <= window
        assert all(map(torch.equal, ring.in_order(), known.last(window - 1)))


@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=4),
    window=st.sampled_from([1, 2, 5, 8]),
    tokens=st.integers(1, 12),
    back=st.booleans(),
)
def test_rows_of_different_lengths_stand_side_by_side(lengths: list[int], window: int, tokens: int, back: bool) -> None:
    rows = []
    for seed, length in enumerate(lengths):
        rows.append(Known(1, 2, (8, 12), window))
        rows[-1].seed = 100 * seed
        rows[-1].more(length)
    first, *others = (
        WindowRing.of(*row.last(window - 1), window, length) for row, length in zip(rows, lengths, strict=True)
    )
    ring, spec = first.joined(others), AttentionSpec(0.3)

    def token(seed: int) -> None:
        query = numbers(len(rows), 4, 1, 8, seed=seed)
        new = [row.more(1) for row in rows]
        found = ring.attend(query, torch.cat([keys for keys, _ in new]), torch.cat([values for _, values in new]), spec)
        assert found is not None
        expected = [row.attended(query[place : place + 1], spec) for place, row in enumerate(rows)]
        torch.testing.assert_close(found.double(), torch.cat(expected), rtol=0, atol=1e-5)

    for seed in range(tokens):
        token(seed)
    if back:
        for row in rows:
            row.forget(1)
        ring.back_to(ring.seen - 1)
    token(-1)
    assert ring.seen.tolist() == [row.keys.shape[2] for row in rows]
    for place, row in enumerate(rows):
        assert all(map(torch.equal, ring.selected(torch.tensor([place])).in_order(), row.last(window - 1)))


def test_tokens_of_another_kind_are_left_alone() -> None:
    known = Known(2, 2, (16, 16), 8)
    known.more(5)
    ring, spec = WindowRing.of(*known.last(7), 8, 5), AttentionSpec(0.3)
    query, (keys, values) = numbers(2, 4, 1, 16, seed=3), known.more(1)
    for wrong in (
        (query.double(), keys, values),
        (query, keys.bfloat16(), values),
        (query, keys, values[:1]),
        (query[:, :, :, :8], keys, values),
    ):
        assert ring.attend(*wrong, spec) is None
    assert ring.seen.tolist() == [5, 5]
    found = ring.attend(query, keys, values, spec)
    assert found is not None
    torch.testing.assert_close(found.double(), known.attended(query, spec), rtol=0, atol=1e-5)


def test_float64_is_not_served() -> None:
    assert native.reads(torch.zeros(1, dtype=torch.bfloat16))
    assert not native.reads(torch.zeros(1, dtype=torch.float64))
    assert not native.reads(torch.zeros(1, device="meta"))


# --- in caches --------------------------------------------------------------------------------------------------


def sliding(cache: CompressedCache) -> list[CompactSlidingLayer]:
    return [layer for layer in cache.layers if isinstance(layer, CompactSlidingLayer)]


def rings(cache: CompressedCache) -> list[bool]:
    return [layer.ring is not None for layer in sliding(cache)]


def said(model: PreTrainedModel, cache: CompressedCache, ids: Tensor, **given: Any) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(ids, past_key_values=cache, **given).logits
    return logits


def made(family: str) -> PreTrainedModel:
    model = build(family)
    model.set_attn_implementation("winnow")
    return model


@pytest.mark.parametrize(("family", "rows", "length"), each_value([*FAMILIES, *SHARING], [1, 3], [3, PROMPT]))
def test_tokens_are_as_without_a_cache(family: str, rows: int, length: int) -> None:
    model, ids = made(family), prompt(rows, length + 12)
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
    cache = CompressedCache(model, "full")
    said(model, cache, ids[:, :length])
    for place in range(length, ids.shape[1]):
        found = said(model, cache, ids[:, place : place + 1])
        torch.testing.assert_close(found[:, 0], expected[:, place], rtol=0, atol=1e-5)
        assert all(rings(cache))
        assert cache.get_seq_length() == place + 1


def test_a_token_copies_no_window() -> None:
    """Nothing that torch makes or shows for a token is as large as half of a window's keys."""
    model = build("gemma3_text", sliding_window=512)
    model.set_attn_implementation("winnow")
    cache = CompressedCache(model, "full")
    said(model, cache, prompt(length=600))
    window = sliding(cache)[0].keys.nbytes
    said(model, cache, prompt(length=1))

    class Largest(TorchDispatchMode):
        bytes = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            if isinstance(result, Tensor):
                self.bytes = max(self.bytes, result.nbytes)
            return result

    with Largest() as largest:
        said(model, cache, prompt(length=1, seed=2))
    assert 0 < largest.bytes < window / 2


CHANGES: dict[str, Callable[[PreTrainedModel, CompressedCache], Any]] = {
    "nothing": lambda model, cache: None,
    "a chunk": lambda model, cache: said(model, cache, prompt(2, 3, seed=5)),
    "a padded chunk": lambda model, cache: said(
        model,
        cache,
        prompt(2, 2, seed=5),
        attention_mask=torch.cat([torch.ones(2, cache.get_seq_length()), torch.tensor([[1.0, 0.0], [1.0, 1.0]])], 1),
    ),
    "rows": lambda model, cache: cache.reorder_cache(torch.tensor([1, 0])),
    "repeated rows": lambda model, cache: cache.batch_select_indices(torch.tensor([1, 1])),
    "stats": lambda model, cache: cache.stats(),
    "assisted decoding": lambda model, cache: (
        cache.activate_past_recording(),
        said(model, cache, prompt(2, 4, seed=6)),
        cache.crop(-2),
    ),
    "failure": lambda model, cache: fails(model, cache, 1),
    "failure of a chunk": lambda model, cache: fails(model, cache, 3),
}


def fails(model: PreTrainedModel, cache: CompressedCache, tokens: int) -> None:
    def fail(*given: Any) -> None:
        raise InterruptedError

    last = model.get_decoder().layers[-1]
    hook = last.register_forward_pre_hook(fail)
    with pytest.raises(InterruptedError):
        said(model, cache, prompt(2, tokens, seed=7))
    hook.remove()
    with pytest.raises(CacheError, match="not finished"):
        said(model, cache, prompt(2, 1))
    cache.take_back_unfinished()


@pytest.mark.parametrize(("case", "length"), each_value([*product(FAMILIES, CHANGES)], [3, 6, PROMPT]))
def test_both_ways_give_the_same(case: tuple[str, str], length: int) -> None:
    family, change = case
    model = made(family)

    def decode() -> list[Tensor]:
        cache = CompressedCache(model, "full")
        said(model, cache, prompt(2, length))
        found = [said(model, cache, prompt(2, 1, seed=seed))[:, -1] for seed in range(5)]
        CHANGES[change](model, cache)
        return [*found, *(said(model, cache, prompt(2, 1, seed=seed))[:, -1] for seed in range(10))]

    found = decode()
    with mock.patch("winnow.cache.sliding_layer.reads", return_value=False):
        expected = decode()
    torch.testing.assert_close(torch.stack(found), torch.stack(expected), rtol=0, atol=1e-5)


def test_a_fork_and_its_original_go_on_apart() -> None:
    model, ids = made("gemma3_text"), prompt(length=PROMPT + 6)
    cache = CompressedCache(model, "full")
    for part in ids.split([PROMPT, 1, 1, 4], 1)[:3]:
        said(model, cache, part)
    fork = deepcopy(cache)
    said(model, fork, prompt(length=1, seed=3))
    expected = CompressedCache(model, "full")
    said(model, expected, ids[:, : PROMPT + 2])
    for token in ids[:, PROMPT + 2 :].split(1, 1):
        torch.testing.assert_close(said(model, cache, token), said(model, expected, token), rtol=0, atol=1e-5)
    assert fork.get_seq_length() == PROMPT + 3


def test_padding_within_a_window_is_left_to_masks() -> None:
    """Tokens go by rings once windows have moved on from it."""
    model, ids = made("gemma3_text"), prompt(2, PROMPT + 14)
    cache, mask = CompressedCache(model, "full"), torch.ones(2, PROMPT + 14, dtype=torch.int64)
    mask[1, : PROMPT - 3] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    said(model, cache, ids[:, :PROMPT], attention_mask=mask[:, :PROMPT], position_ids=positions[:, :PROMPT])
    alone, short = CompressedCache(model, "full"), ids[1:, PROMPT - 3 :]
    said(model, alone, short[:, :3])
    for place in range(PROMPT, PROMPT + 14):
        here = slice(place, place + 1)
        inputs = {"attention_mask": mask[:, : place + 1], "position_ids": positions[:, here]}
        found = said(model, cache, ids[:, here], **inputs)
        torch.testing.assert_close(found[1:], said(model, alone, ids[1:, here]), rtol=0, atol=1e-5)
        assert all(rings(cache)) == (place >= PROMPT + WINDOW - 4)
    assert all(rings(alone))


def test_all_that_a_ring_holds_is_counted() -> None:
    model = made("gemma3_text")
    cache = CompressedCache(model, "full")
    said(model, cache, prompt(length=PROMPT))
    said(model, cache, prompt(length=1))
    held = sum(each.nbytes for layer in sliding(cache) for each in layer.tensors())
    assert cache.stats().bytes["other"] == held
    token = sum(layer.keys[:, :, :1].nbytes + layer.values[:, :, :1].nbytes for layer in sliding(cache))
    numbers_of_rows = 2 * 8 * len(sliding(cache))  # lengths, and tokens that were seen
    assert held == (WINDOW + 1) * token + numbers_of_rows


def test_a_window_of_many_tokens_grows_with_these() -> None:
    model = build("gemma3_text", sliding_window=100_000)
    model.set_attn_implementation("winnow")
    cache = CompressedCache(model, "full")
    said(model, cache, prompt(length=PROMPT))
    for seed in range(100):
        said(model, cache, prompt(length=1, seed=seed))
    ring = sliding(cache)[0].ring
    assert ring is not None
    assert PROMPT + 100 <= ring.keys.shape[2] < 300


def test_a_cache_that_is_reset_begins_anew() -> None:
    model = made("gemma3_text")
    cache = CompressedCache(model, "full")
    ids = prompt(length=PROMPT + 1)
    found = []
    for _ in range(2):
        said(model, cache, ids[:, :PROMPT])
        found.append(said(model, cache, ids[:, PROMPT:]))
        cache.reset()
    assert torch.equal(found[0], found[1])


def test_gradients_of_a_token_are_refused() -> None:
    model = made("gemma3_text")
    cache = CompressedCache(model, "full")
    said(model, cache, prompt(length=PROMPT))
    model.requires_grad_(False)
    model.get_submodule("model.layers.0.self_attn.q_proj").requires_grad_(True)
    with pytest.raises(CacheError, match="gradients cannot flow into a compressed cache"):
        model(prompt(length=1), past_key_values=cache)


# --- rows of several caches -------------------------------------------------------------------------------------


def filled(model: PreTrainedModel, length: int, more: int = 0, method: str = "full") -> CompressedCache:
    """A cache of a random text, and some tokens behind it, by its length."""
    cache = CompressedCache(model, method)
    ids = prompt(length=length + more, seed=length)
    said(model, cache, ids[:, :length])
    for place in range(length, length + more):
        said(model, cache, ids[:, place : place + 1])
    return cache


@pytest.mark.parametrize(
    ("family", "lengths"), each_value([*FAMILIES, *SHARING], [(3, PROMPT, 6), (PROMPT, PROMPT), (30, 2)])
)
def test_joined_rows_say_what_they_say_alone(family: str, lengths: tuple[int, ...]) -> None:
    model = made(family)
    alone = [filled(model, length, more=place) for place, length in enumerate(lengths)]
    joined = CompressedCache.joined([deepcopy(cache) for cache in alone])
    for seed in range(WINDOW + 4):
        ids = prompt(len(lengths), 1, seed=seed)
        positions = torch.tensor([[cache.get_seq_length()] for cache in alone])
        expected = torch.cat([said(model, cache, ids[row : row + 1]) for row, cache in enumerate(alone)])
        found = said(model, joined, ids, position_ids=positions)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    # And one of them goes on alone, with several tokens at a time.
    more = prompt(1, 3, seed=99)
    apart = joined.alone(1)
    assert apart.get_seq_length() == alone[1].get_seq_length()
    for ids in (more, prompt(1, 1, seed=98)):
        torch.testing.assert_close(said(model, apart, ids), said(model, alone[1], ids), rtol=0, atol=1e-5)


def test_rows_of_different_lengths_take_one_token_at_a_time() -> None:
    model = made("gemma3_text")
    joined = CompressedCache.joined([filled(model, 5), filled(model, PROMPT)])
    with pytest.raises(CacheError, match="rows of different lengths take one token at a time"):
        said(model, joined, prompt(2, 3), position_ids=torch.tensor([[5, 6, 7], [20, 21, 22]]))
    joined.take_back_unfinished()
    for refused in (lambda: joined.crop(-1), lambda: (joined.activate_past_recording(), joined.crop(-1))):
        with pytest.raises(CacheError, match="rows of different lengths"):
            refused()
    joined = CompressedCache.joined([filled(model, 5), filled(model, PROMPT)])
    ids, positions = prompt(2, 1), torch.tensor([[5], [PROMPT]])
    expected = [said(model, filled(model, length), ids[row : row + 1]) for row, length in enumerate((5, PROMPT))]
    torch.testing.assert_close(said(model, joined, ids, position_ids=positions), torch.cat(expected), rtol=0, atol=1e-5)
    joined.reset()
    assert not joined.get_seq_length()
    said(model, joined, prompt(2, PROMPT))


def test_windows_that_hold_padding_are_not_joined() -> None:
    model = made("gemma3_text")
    padded = CompressedCache(model, "full")
    mask = torch.ones(1, PROMPT, dtype=torch.int64)
    mask[:, : PROMPT - 3] = 0
    said(model, padded, prompt(length=PROMPT), attention_mask=mask)
    assert not padded.may_be_joined()
    with pytest.raises(CacheError, match="no sliding window of the model may hold padding"):
        CompressedCache.joined([padded, filled(model, 5)])


def test_rows_leave_and_change_places() -> None:
    model = made("gpt_oss")
    alone = [filled(model, length) for length in (4, PROMPT, 9)]
    joined = CompressedCache.joined([deepcopy(cache) for cache in alone])
    joined.reorder_cache(torch.tensor([2, 0]))
    ids, positions = prompt(2, 1), torch.tensor([[9], [4]])
    found = said(model, joined, ids, position_ids=positions)
    expected = [said(model, alone[row], ids[place : place + 1]) for place, row in enumerate((2, 0))]
    torch.testing.assert_close(found, torch.cat(expected), rtol=0, atol=1e-5)
