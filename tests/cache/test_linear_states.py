"""Steps of a CPU as graphs where layers have linear states: replayed, interrupted, taken back, in other rows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import LinearAttentionLayer
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from support.families import STATES, ZAYA, build, prompt
from support.graphed import PROMPT, Pair, twins_here
from support.turns import each_value
from winnow import CacheError, CompressedCache, GraphedDecoder, step_graphs
from winnow.cache import while_graphed
from winnow.cache.linear_states import LinearStates
from winnow.models.cache_argument import with_cache

pytestmark = pytest.mark.usefixtures("one_thread")
OTHERS = (each for each in STATES if each in CONFIG_MAPPING_NAMES)
FAMILIES = ("qwen3_next", "lfm2", "falcon_h1", "kimi_linear", *OTHERS)
"""One whose layers are linear attention, convolutions, or a state beside attention; and others."""


def states(cache: CompressedCache) -> list[Tensor]:
    return list(LinearStates(cache.layers).tensors())


def same_states(both: Pair) -> None:
    """Checks that both caches are the same to the bit."""
    both.same()
    found, expected = states(both.cache), states(both.expected)
    assert found
    assert all(map(torch.equal, found, expected))


def replayed(both: Pair, count: int) -> list[bool]:
    """Steps that are held to ordinary ones, to the bit."""
    with mock.patch("support.graphed.CLOSE", 0.0):
        steps = both.steps(count)
    same_states(both)
    return steps


def ordinary(both: Pair, count: int) -> None:
    """Passes that whoever decodes with the models asks for."""
    for _ in range(count):
        both.ordinary(both.token[:, None])
        both.token = (both.token * 7 + 5) % 90 + 2
        same_states(both)


def started(family: str = "qwen3_next", steps: int = 4, **options: Any) -> Pair:
    """Two caches of a family, one of which has a graph by now."""
    both = twins_here(build(family)).pair(**options)
    both.graphed()
    assert replayed(both, steps)[-1]
    return both


@pytest.mark.parametrize(("family", "sizes"), each_value(FAMILIES, [(1, PROMPT), (2, PROMPT), (2, 1)]))
def test_states_move_on_while_steps_are_replayed(family: str, sizes: tuple[int, int]) -> None:
    rows, length = sizes
    both = twins_here(build(family)).pair(rows=rows, length=length)
    both.graphed()
    assert replayed(both, 8) == [False, False, True, True, True, True, True, True]
    both.ordinary(prompt(rows, length=1, seed=8))
    same_states(both)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_first_answer_is_checked(family: str) -> None:
    both = twins_here(build(family)).pair()
    with step_graphs(both.device.model):
        ordinary(both, 8)
    assert while_graphed._fit.get(both.device.model) is True


def test_a_wrong_graph_leaves_states_as_ordinary_steps_do() -> None:
    both = twins_here(build("qwen3_next")).pair()
    with step_graphs(both.device.model), mock.patch.object(while_graphed, "_same", return_value=False):
        with pytest.warns(UserWarning, match="gave other logits"):
            ordinary(both, 4)
        ordinary(both, 2)
    assert while_graphed._fit[both.device.model] is False


@pytest.mark.parametrize("family", ["qwen3_next", "lfm2", "falcon_h1"])
def test_prompts_of_inference_mode_are_followed_by_graphs(family: str) -> None:
    places = twins_here(build(family))
    with torch.inference_mode():
        both = places.pair(rows=2)
    both.graphed()
    with torch.inference_mode():
        assert replayed(both, 4)[-1]
        both.each(lambda cache: cache.reorder_cache(torch.tensor([1, 0])))
        both.token = both.token.flip(0)
        assert replayed(both, 3)[-1]


@pytest.mark.parametrize("family", ["qwen3_next", "lfm2", "falcon_h1"])
def test_rows_may_change(family: str) -> None:
    both = started(family, rows=2)
    both.each(lambda cache: cache.reorder_cache(torch.tensor([1, 0])))
    both.token = both.token.flip(0)
    assert replayed(both, 3)[-1]
    both.each(lambda cache: cache.batch_select_indices(torch.tensor([1])))
    both.token = both.token[1:]
    assert replayed(both, 3)[-1]


def test_forks_go_their_own_way() -> None:
    both = started()
    fork, kept = copy.deepcopy(both.cache), copy.deepcopy(both.expected)
    assert replayed(both, 3) == [True] * 3
    assert all(map(torch.equal, states(fork), states(kept)))


@pytest.mark.parametrize("family", ["qwen3_next", "falcon_h1"])
def test_a_replay_that_is_broken_off_is_told(family: str) -> None:
    both = started(family)
    token = both.token
    with (
        mock.patch.object(both.decoder._graph.captured, "replay", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        both.decoder.step(token)
    for step in (lambda: both.decoder.step(token), lambda: both.ordinary(token[:, None])):
        with pytest.raises(CacheError, match="start again from the prompt"):
            step()


@pytest.mark.parametrize("problem", [KeyboardInterrupt, MemoryError])
def test_a_capture_that_is_broken_off_leaves_the_cache_as_it_was(problem: type) -> None:
    both = twins_here(build("qwen3_next")).pair(rows=2)
    both.graphed()
    both.up_to_capture()
    last = type(both.device.model.lm_head)
    with mock.patch.object(last, "forward", side_effect=problem), pytest.raises(problem):
        both.decoder.step(both.token)
    same_states(both)
    assert replayed(both, 3)[-1]


def looking(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose last layer looks at its numbers."""

    def looked(module: Any, hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        float(hidden.sum())
        return function(module, hidden, *args, **kwargs)

    return looked


def test_a_model_that_looks_at_numbers_goes_on_without_graphs() -> None:
    both = twins_here(build("qwen3_next")).pair()
    last = type(both.device.model.lm_head)
    with step_graphs(both.device.model), mock.patch.object(last, "forward", looking(last.forward)):
        ordinary(both, 6)
    both.graphed()
    both.up_to_capture()
    with mock.patch.object(last, "forward", looking(last.forward)), pytest.raises(CacheError, match="looks at numbers"):
        both.decoder.step(both.token)
    same_states(both)


def test_states_that_are_not_changed_in_place_are_noticed() -> None:
    both = twins_here(build("lfm2")).pair()
    both.graphed()
    both.up_to_capture()

    decoder, forward = both.decoder, both.decoder._pass

    def moving(fed: Any) -> Tensor:
        logits = forward(fed)
        layer = next(each for each in both.cache.layers if isinstance(each, LinearAttentionLayer))
        layer.conv_states[0] = layer.conv_states[0].clone()
        return logits

    with (
        mock.patch.object(decoder, "_pass", moving),
        pytest.raises(CacheError, match="do not change their states in place"),
    ):
        both.decoder.step(both.token)
    same_states(both)
    assert replayed(both, 3)[-1]


def test_a_step_is_taken_back_with_its_states() -> None:
    both = started()
    with pytest.raises(CacheError, match=r"states\(\) before the step"):
        both.decoder.take_back()
    before = both.decoder.states()
    both.decoder.step(both.token)
    both.decoder.take_back(before)
    same_states(both)
    assert replayed(both, 3)[-1]


def test_the_first_step_after_a_prompt_of_inference_mode_is_taken_back() -> None:
    places = twins_here(build("qwen3_next"))
    with torch.inference_mode():
        both = places.pair()
    before = both.graphed().states()
    both.decoder.step(both.token)
    both.decoder.take_back(before)
    same_states(both)
    assert replayed(both, 4)[-1]


@pytest.mark.parametrize("family", ["qwen3_next", "lfm2", "falcon_h1"])
def test_prompts_of_inference_mode_are_followed_by_steps_outside(family: str) -> None:
    places = twins_here(build(family))
    with torch.inference_mode():
        both = places.pair(rows=2)
    ordinary(both, 2)
    with torch.inference_mode():
        both.each(lambda cache: cache.reorder_cache(torch.tensor([1, 0])))
        both.token = both.token.flip(0)
    ordinary(both, 2)


def test_padding_is_seen_by_the_prompt_alone() -> None:
    both = twins_here(build("qwen3_next"))
    mask = torch.ones(2, PROMPT, dtype=torch.int64)
    mask[1, :5] = 0
    cache = CompressedCache(both.device.model, "snapkv(window=4) @ 12")
    both.device.run(cache, prompt(2, PROMPT), attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0))
    fork, decoder = copy.deepcopy(cache), GraphedDecoder(both.device.model, cache)
    for seed in range(6):
        mask = torch.cat([mask, torch.ones(2, 1, dtype=torch.int64)], 1)
        token, positions = prompt(2, 1, seed=seed), (mask.sum(1) - 1)[:, None]
        expected = both.device.run(fork, token, position_ids=positions, attention_mask=mask)
        torch.testing.assert_close(decoder.step(token), expected, rtol=0, atol=1e-6)
    assert decoder.replays == 5
    assert all(map(torch.equal, states(cache), states(fork)))


@torch.no_grad()
@pytest.mark.parametrize(("family", "lengths"), each_value(FAMILIES, [(3, PROMPT, 6), (30, 2)]))
def test_joined_rows_say_what_they_say_alone(family: str, lengths: tuple[int, ...]) -> None:
    model = twins_here(build(family)).device.model
    alone = [filled(model, length) for length in lengths]
    together = CompressedCache.joined([copy.deepcopy(cache) for cache in alone])
    decoder = GraphedDecoder(model, copy.deepcopy(together), room=8)
    for seed in range(5):
        ids = prompt(len(lengths), 1, seed=seed)
        positions = torch.tensor([[cache.get_seq_length()] for cache in alone])
        expected = torch.cat([said(model, cache, ids[row : row + 1]) for row, cache in enumerate(alone)])
        torch.testing.assert_close(said(model, together, ids, position_ids=positions), expected, rtol=0, atol=1e-5)
        torch.testing.assert_close(decoder.step(ids), expected, rtol=0, atol=1e-5)
    assert decoder.replays == 4
    # And one of them goes on alone, with several tokens at a time.
    apart = together.alone(1)
    for ids in (prompt(1, 3, seed=99), prompt(1, 1, seed=98)):
        torch.testing.assert_close(said(model, apart, ids), said(model, alone[1], ids), rtol=0, atol=1e-5)


def said(model: PreTrainedModel, cache: CompressedCache, ids: Tensor, **given: Tensor) -> Tensor:
    """Logits [R, V] after tokens."""
    length = cache.get_seq_length()
    given = given or {"position_ids": torch.arange(length, length + ids.shape[1])[None]}
    found: Tensor = model(ids, **with_cache(model, cache), **given).logits[:, -1]
    return found


def filled(model: PreTrainedModel, length: int) -> CompressedCache:
    """A cache of a random text, and of a token behind it."""
    cache = CompressedCache(model, "adakv(window=4) @ 12")
    for ids in (prompt(length=length, seed=length), prompt(length=1, seed=length)):
        said(model, cache, ids)
    return cache


def test_windows_beside_states_are_not_joined() -> None:
    model = build("zaya", **ZAYA)
    model.set_attn_implementation("winnow")
    cache = CompressedCache(model, "full")
    with torch.no_grad():
        said(model, cache, prompt(length=20))
    assert not cache.may_be_joined()
    with pytest.raises(CacheError, match="lie beside a linear state"):
        CompressedCache.joined([cache, cache])
    with pytest.raises(CacheError, match="lie beside a linear state"):
        cache.alone(0)
