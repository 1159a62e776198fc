"""Caches whose steps are graphs: folded, grown, changed in between, refused, interrupted."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from transformers import PreTrainedModel

from support import small_caches
from support.families import FAMILIES, build, prompt
from support.graphed import (
    ON_GPU,
    PROMPT,
    Pair,
    Places,
    back,
    close,
    not_waiting,
    places,
    places_here,
    twins,
    twins_here,
)
from support.turns import each_value
from winnow import CacheError, CompressedCache, GraphedDecoder, step_graphs
from winnow.cache import while_graphed
from winnow.cache.layer import CompressedLayer
from winnow.cache.sliding_layer import CompactSlidingLayer
from winnow.cache.tail import Tail
from winnow.cache.window_ring import WindowRing
from winnow.kernels import native
from winnow.models.cache_argument import generation_name

pytestmark = pytest.mark.usefixtures("one_thread")
GEMMAS = ("gemma2", "gemma3_text", "gemma3n_text", "gemma4_text")
SLIDING = (*GEMMAS, "olmo3", "cohere2", "exaone4", "gpt_oss", "llama4_text")
ONLY_HERE = {
    **dict.fromkeys(SLIDING, "CompactSlidingLayer"),
    **dict.fromkeys(("qwen3_next", "lfm2"), "LinearAttentionLayer"),
    "falcon_h1": "CompressedHybridLayer",
}
"""Families with layers that only a graph of a CPU can hold, by the layers' type."""
CHUNKED = ("llama4_text",)
LOOKING = ("gpt2",)
"""Families that look for padding among the tokens, which a graph on a CPU cannot hold."""
PAGE = Path(__file__).resolve().parents[2] / "docs" / "graphs.md"


@pytest.fixture(scope="module", params=["device", "CPU"])
def both_places(request: pytest.FixtureRequest) -> Iterator[Places]:
    with places_here() if request.param == "CPU" else places(kernels=False) as found:
        yield found


@pytest.mark.parametrize(
    ("family", "both_places"),
    each_value([family for family in FAMILIES if family not in ONLY_HERE], ["device", "CPU"]),
    indirect=["both_places"],
)
def test_every_architecture_with_full_attention_has_such_steps(both_places: Places, family: str) -> None:
    model = build(family)
    if both_places.rehearses:
        steps_there(family, model)
    else:
        steps_here(model, looks=family in LOOKING)


def steps_there(family: str, model: PreTrainedModel) -> None:
    """Checks that steps on the device are replayed."""
    if ON_GPU and "num_local_experts" in FAMILIES[family]:
        # torch's grouped products of fp32 cannot be captured; tests/cache/test_cuda.py has those of bf16.
        model.set_experts_implementation("batched_mm")
    both = twins(model).pair(rows=2)
    both.graphed()
    assert both.steps(4) == [False, False, True, True]


def steps_here(model: PreTrainedModel, looks: bool) -> None:
    """Checks that steps on the CPU are replayed, to the bit, or refused where the model looks at numbers."""
    both = twins_here(model).pair(rows=2)
    both.graphed()
    if not looks:
        with mock.patch("support.graphed.CLOSE", 0.0):
            assert both.steps(4) == [False, False, True, True]
        return
    both.up_to_capture()
    with pytest.raises(CacheError, match=r"cannot be captured in a graph.*call the model itself"):
        both.decoder.step(both.token)
    both.same()
    both.ordinary(prompt(2, length=1, seed=8))


@pytest.mark.parametrize("method", ["snapkv(window=4) @ 12", "h2o @ 12", "knorm @ 12"])
def test_folds_are_ordinary_steps_and_the_next_one_is_captured_anew(both_places: Places, method: str) -> None:
    both = both_places.pair(method, rows=2, fold_every=3)
    both.graphed()
    assert both.steps(8) == [False, False, True, False, True, True, False, True]


def test_rings_of_queries_need_not_be_full(both_places: Places) -> None:
    both = both_places.pair("snapkv(window=8) @ 12", length=5, fold_every=5)
    both.graphed()
    assert both.steps(7) == [False, False, True, True, True, False, True]


def test_room_is_made_for_more_tokens(both_places: Places) -> None:
    with mock.patch.object(CompressedLayer, "_new_tail", lambda layer, keys, values: Tail(keys, values, capacity=0)):
        both = both_places.pair()
    with mock.patch("winnow.cache.tail.FIRST_CAPACITY", 1):
        both.graphed(room=3)
        assert both.steps(8) == [False, False, True, False, True, True, False, True]


def test_rows_may_hold_different_numbers_of_later_tokens(both_places: Places) -> None:
    both = both_places.pair(rows=2)
    ids, mask = prompt(2, length=3, seed=3), torch.ones(2, PROMPT + 3, dtype=torch.int64)
    mask[1, PROMPT + 1 :] = 0
    both.ordinary(ids, attention_mask=mask, position_ids=torch.arange(PROMPT, PROMPT + 3).expand(2, 3))
    both.graphed()
    assert both.steps(4, position_ids=torch.tensor([[PROMPT + 3], [PROMPT + 1]]))[2:] == [True, True]


def test_prompts_may_differ_in_length(both_places: Places) -> None:
    both, other = both_places.pair(), both_places.pair(length=17)
    both.cache = CompressedCache.joined([both.cache, other.cache])
    both.expected = CompressedCache.joined([both.expected, other.expected])
    both.token = torch.arange(2)
    both.graphed()
    assert both.steps(4, position_ids=torch.tensor([[PROMPT], [17]]))[2:] == [True, True]


def test_positions_may_be_given(both_places: Places) -> None:
    both = both_places.pair(rows=2)
    both.graphed(positions=torch.tensor([31, 40]))
    assert both.steps(4, position_ids=torch.tensor([[31], [40]]))[-1]
    both.each(lambda cache: cache.crop(-1))
    both.steps(2, position_ids=torch.tensor([[34], [43]]))
    both.each(lambda cache: cache.reorder_cache(torch.tensor([1, 0])))
    for _ in range(2):
        with pytest.raises(
            CacheError, match=r"were replaced or folded outside.*make a new GraphedDecoder with positions"
        ):
            both.decoder.step(both.device.to(both.token))


def test_rows_that_are_alike_may_change_places(both_places: Places) -> None:
    both = both_places.pair()
    both.each(lambda cache: cache.batch_repeat_interleave(2))
    both.token = both.token.repeat_interleave(2)
    both.graphed(positions=torch.tensor([31, 40]))
    assert both.steps(4, position_ids=torch.tensor([[31], [40]]))[-1]
    both.each(lambda cache: cache.reorder_cache(torch.tensor([1, 0])))
    with pytest.raises(CacheError, match=r"were replaced or folded outside.*make a new GraphedDecoder with positions"):
        both.decoder.step(both.device.to(both.token))


@pytest.mark.parametrize("fold_every", [None, 6])
def test_the_ordinary_way_and_graphs_take_turns(both_places: Places, fold_every: int | None) -> None:
    both = both_places.pair("snapkv(window=4) @ 12", rows=2, fold_every=fold_every)
    both.graphed()
    assert both.steps(3)[-1]
    both.ordinary(prompt(2, length=1, seed=4))
    assert both.steps(1) == [True]
    both.each(lambda cache: cache.crop(-2))
    assert both.steps(1) == [True]
    both.ordinary(prompt(2, length=2, seed=5))
    both.steps(2)
    both.ordinary(prompt(2, length=1, seed=6))


def test_rows_may_change(both_places: Places) -> None:
    both = both_places.pair(rows=2)
    both.graphed()
    assert both.steps(3)[-1]
    both.each(lambda cache: cache.reorder_cache(torch.tensor([1, 0])))
    assert both.steps(2) == [False, True]
    both.each(lambda cache: cache.batch_repeat_interleave(2))
    both.token = both.token.repeat_interleave(2)
    assert both.steps(2) == [False, True]
    both.each(lambda cache: cache.batch_select_indices(torch.tensor([3])))
    both.token = both.token[:1]
    assert both.steps(2) == [False, True]


def test_forks_go_their_own_way(both_places: Places) -> None:
    both = both_places.pair()
    both.graphed()
    assert both.steps(3)[-1]
    fork = copy.copy(both)
    fork.cache, fork.expected = copy.deepcopy(both.cache), copy.deepcopy(both.expected)
    fork.token = fork.token + 11
    both.steps(1)
    fork.ordinary(prompt(length=1, seed=7))
    fork.graphed()
    assert fork.steps(3)[-1]
    assert both.steps(2) == [True, True]


def test_nothing_of_a_replayed_step_waits_for_the_device(both_places: Places) -> None:
    both = both_places.pair(rows=2)
    decoder, tokens = both.graphed(), both.device.to(torch.tensor([5, 6]))
    for _ in range(3):
        decoder.step(tokens)
    with not_waiting():
        decoder.step(tokens)


def test_the_example_of_the_page_generates_what_the_model_does(both_places: Places) -> None:
    here, there = both_places.here, both_places.device
    (example,) = re.findall(r"^def continued.*?^    return .*?$", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    # The page names the argument as the newest transformers does.
    example = example.replace("(ids, cache=", f"(ids, {generation_name()}=")
    given = {"CompressedCache": CompressedCache, "GraphedDecoder": partial(GraphedDecoder, capture=both_places.capture)}
    names: dict[str, Any] = {"torch": torch, "winnow": SimpleNamespace(**given)}
    exec(example, names)
    ids = prompt(2, PROMPT)
    cache = CompressedCache(here.model, "snapkv @ 64")
    expected = here.model.generate(ids, past_key_values=cache, max_new_tokens=6, do_sample=False)
    with torch.no_grad():
        found = names["continued"](there.model, there.to(ids), 6)
    assert back(found).tolist() == expected[:, PROMPT:].tolist()


def test_what_is_held_is_counted_as_ever(both_places: Places) -> None:
    both = both_places.pair("snapkv(window=4) @ 12", rows=2)
    both.graphed()
    both.steps(3)
    found, expected = both.cache.stats(), both.expected.stats()
    assert (found.tail_tokens, found.tokens_seen, found.slots) == ([3, 3], PROMPT + 3, expected.slots)


def test_logits_stay_after_the_next_step(both_places: Places) -> None:
    both = both_places.pair()
    decoder = both.graphed()
    assert both.steps(3)[-1]
    first = decoder.step(both.device.to(torch.tensor([4])))
    before = back(first).clone()
    decoder.step(both.device.to(torch.tensor([[50]])))
    assert torch.equal(back(first), before)


def test_a_model_that_waits_for_the_device_is_refused_and_goes_on_without(both_places: Places) -> None:
    both = both_places.pair("snapkv(window=4) @ 12", fold_every=20)
    both.graphed()
    both.up_to_capture()
    hook = both.device.model.model.layers[1].mlp.register_forward_hook(
        lambda module, given, found: found * (2 if float(found.sum()) > 1e9 else 1)
    )
    with pytest.raises(CacheError, match=r"cannot be captured in a graph.*call the model itself"):
        both.decoder.step(both.device.to(torch.tensor([5])))
    hook.remove()
    both.same()
    both.ordinary(prompt(length=1, seed=8))
    assert both.steps(3)[-1]


def test_errors_of_the_model_are_its_own(both_places: Places) -> None:
    both = both_places.pair()
    both.graphed()
    both.up_to_capture()
    layer = type(both.device.model.model.layers[1].mlp)
    with (
        mock.patch.object(layer, "forward", side_effect=torch.OutOfMemoryError("too much")),
        pytest.raises(torch.OutOfMemoryError),
    ):
        both.decoder.step(both.device.to(torch.tensor([5])))
    both.same()
    assert both.steps(2)[-1]


def test_attention_that_goes_another_way_is_refused(both_places: Places) -> None:
    both = both_places.pair()
    both.graphed()
    both.up_to_capture()
    attention = both.device.model.model.layers[1].self_attn
    with mock.patch.object(attention, "scaling", 0.5), pytest.raises(CacheError, match="differed from the step before"):
        both.decoder.step(both.device.to(torch.tensor([5])))
    both.same()
    assert both.steps(3)[-1]


def test_ctrl_c_in_a_capture_is_no_error_of_the_capture(both_places: Places) -> None:
    """torch tells of a capture that it could not end, not of what left it."""

    def interrupted(work: Any, device: torch.device) -> Any:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("the capture was not ended")

    both = both_places.pair()
    both.graphed()
    both.up_to_capture()
    with mock.patch.object(both.decoder, "_capture", interrupted), pytest.raises(KeyboardInterrupt):
        both.decoder.step(both.device.to(torch.tensor([5])))
    both.same()
    assert both.steps(2)[-1]


def test_autocast_is_refused(both_places: Places) -> None:
    both = both_places.pair()
    both.graphed()
    both.steps(3)
    with (
        mock.patch("winnow.cache.graphed.autocast_is_on", return_value=True),
        pytest.raises(CacheError, match="load the model in that dtype, or call the model itself"),
    ):
        both.decoder.step(both.device.to(torch.tensor([5])))
    assert both.steps(1) == [True]


def test_a_step_after_an_interrupted_replay_is_refused(both_places: Places) -> None:
    both = both_places.pair()
    decoder = both.graphed()
    assert both.steps(3)[-1]
    with (
        mock.patch.object(both_places.capture, "replay", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        decoder.step(both.device.to(torch.tensor([5])))
    if not both_places.rehearses:
        # A CPU has the cache as it was.
        both.same()
        assert both.steps(3) == [False, True, True]
        return
    for step in (lambda: decoder.step(both.device.to(torch.tensor([5]))), lambda: both.ordinary(prompt(length=1))):
        with pytest.raises(CacheError, match="start again from the prompt"):
            step()


def test_tokens_of_other_rows_are_refused(both_places: Places) -> None:
    both = both_places.pair(rows=2)
    decoder = both.graphed()
    with pytest.raises(ValueError, match=r"tokens have the shape \[1\]; give one for each of 2 rows"):
        decoder.step(both.device.to(torch.tensor([5])))
    both.cache.reset()
    with pytest.raises(CacheError, match="nothing was compressed yet"):
        decoder.step(both.device.to(torch.tensor([5, 6])))


def test_what_cannot_be_graphed_is_refused(both_places: Places) -> None:
    both, other = both_places.pair(rows=2), both_places.pair()
    with pytest.raises(CacheError, match="room is 0; give the number of tokens"):
        both.graphed(room=0)
    for positions in (torch.tensor([1]), torch.tensor([1.0, 2.0])):
        with pytest.raises(CacheError, match="give a whole number for each of 2 rows"):
            both.graphed(positions=positions)
    with pytest.raises(CacheError, match="of another model; make the GraphedDecoder with the model"):
        GraphedDecoder(both.here.model, both.cache)
    with pytest.raises(CacheError, match="run the prompt through the model first"):
        GraphedDecoder(both.here.model, CompressedCache(both.here.model, "full"))
    other.cache.activate_past_recording()
    with pytest.raises(CacheError, match="assisted decoding"):
        other.graphed()


def test_other_kernels_are_refused() -> None:
    model = small_caches.made()
    cache = small_caches.cache(model)
    ids = prompt()
    with torch.no_grad():
        model(ids, past_key_values=cache)
    with mock.patch.object(native, "supports", return_value=False):
        decoder = GraphedDecoder(model, cache)
        first = decoder.step(ids[:, 0])
        with pytest.raises(CacheError, match=r"runs in torch here.*call the model itself"):
            decoder.step(first.argmax(-1))


@pytest.mark.parametrize(("family", "layer"), ONLY_HERE.items())
def test_sliding_and_linear_layers_are_refused_on_a_device(family: str, layer: str) -> None:
    with places(kernels=False):
        both = twins(build(family)).pair()
        with pytest.raises(CacheError, match=rf"{layer}.*cannot be captured in a graph; call the model itself"):
            both.graphed()


@pytest.mark.parametrize(("family", "sizes"), each_value(SLIDING, [(1, PROMPT), (2, PROMPT), (1, 3)]))
def test_windows_move_on_while_steps_are_replayed_on_a_cpu(family: str, sizes: tuple[int, int]) -> None:
    """Full ones and others, and those of layers that share keys; not those that are chunks."""
    rows, length = sizes
    both = twins_here(build(family)).pair(rows=rows, length=length)
    if family in CHUNKED:
        with pytest.raises(CacheError, match="or they are chunks"):
            both.graphed()
    else:
        both.graphed()
        with mock.patch("support.graphed.CLOSE", 1e-5):
            assert both.steps(12)[2:] == [True] * 10
    same_windows(both)
    both.ordinary(prompt(rows, length=1, seed=8))


def test_windows_that_miss_their_token_are_noticed() -> None:
    both = twins_here(build("gemma3_text")).pair()
    both.graphed()
    both.up_to_capture()
    with mock.patch("winnow.cache.compressed.leave"), pytest.raises(CacheError, match="not finished"):
        both.decoder.step(both.token)
    both.up_to_capture()
    with (
        mock.patch.object(WindowRing, "attend", lambda self, query, *_: torch.zeros_like(query).transpose(1, 2)),
        pytest.raises(CacheError, match="goes another way"),
    ):
        both.decoder.step(both.token)
    same_windows(both)
    assert both.steps(3)[-1]


def same_windows(both: Pair) -> None:
    """Checks that sliding layers hold the same tokens."""
    both.same()
    for one, other in zip(both.cache.layers, both.expected.layers, strict=True):
        if type(one) is CompactSlidingLayer:
            assert one.cumulative_length == other.cumulative_length
            close([one.keys, one.values], [other.keys, other.values])


def test_padding_in_windows_is_left_to_masks() -> None:
    both = twins_here(build("gemma3_text")).pair(rows=2)
    mask = torch.ones(2, PROMPT, dtype=torch.int64)
    mask[1, :5] = 0
    cache = CompressedCache(both.device.model, "snapkv(window=4) @ 12")
    both.device.run(cache, prompt(2, PROMPT), attention_mask=mask)
    with pytest.raises(CacheError, match="there is padding in the sliding windows"):
        GraphedDecoder(both.device.model, cache)
    for seed in range(8):
        mask = torch.cat([mask, torch.ones(2, 1, dtype=torch.int64)], 1)
        token, positions = prompt(2, 1, seed=seed), (mask.sum(1) - 1)[:, None]
        both.device.run(cache, token, attention_mask=mask, position_ids=positions)
    fork, decoder = copy.deepcopy(cache), GraphedDecoder(both.device.model, cache)
    for seed in range(6):
        token, positions = prompt(2, 1, seed=seed), positions + 1
        expected = both.device.run(fork, token, position_ids=positions)
        torch.testing.assert_close(decoder.step(token), expected, rtol=0, atol=1e-6)
    assert decoder.replays == 5


def test_padding_that_comes_into_windows_ends_graphs() -> None:
    both = twins_here(build("gemma3_text")).pair(rows=2)
    decoder = both.graphed()
    both.steps(4)
    mask = torch.ones(2, both.cache.get_seq_length() + 2, dtype=torch.int64)
    mask[0, -2] = 0
    both.device.run(both.cache, prompt(2, 2), attention_mask=mask)
    with pytest.raises(CacheError, match="there is padding in the sliding windows"):
        decoder.step(both.token)


def test_rows_of_different_lengths_are_replayed_with_their_windows() -> None:
    model = twins_here(build("gpt_oss")).device.model
    caches = []
    for length in (3, PROMPT, 7):
        caches.append(CompressedCache(model, "adakv(window=4) @ 12"))
        with torch.no_grad():
            model(prompt(length=length, seed=length), past_key_values=caches[-1])
    cache = CompressedCache.joined(caches)
    fork, decoder = copy.deepcopy(cache), GraphedDecoder(model, cache)
    positions = torch.tensor([[3], [PROMPT], [7]])
    for seed in range(14):
        token = prompt(3, 1, seed=seed)
        with torch.no_grad():
            expected = model(token, past_key_values=fork, position_ids=positions).logits[:, -1]
        torch.testing.assert_close(decoder.step(token), expected, rtol=0, atol=1e-6)
        positions += 1
    assert decoder.replays == 13
    for one, other in zip(cache.sliding_layers(), fork.sliding_layers(), strict=True):
        assert one.ring is not None
        assert other.ring is not None
        assert one.ring.seen.tolist() == other.ring.seen.tolist() == [17, PROMPT + 14, 21]


@pytest.mark.parametrize("family", ["gemma3_text", "gpt_oss"])
def test_a_broken_replay_puts_windows_back(family: str) -> None:
    both = twins_here(build(family)).pair()
    decoder = both.graphed()
    both.steps(4)
    failing = mock.patch.object(decoder._layers[-1], "count_token", side_effect=KeyboardInterrupt)
    with failing, pytest.raises(KeyboardInterrupt):
        decoder.step(both.token)
    same_windows(both)
    assert both.steps(3)[-1]
    same_windows(both)


def test_a_step_is_taken_back_once() -> None:
    both = twins_here(build("gemma3_text")).pair()
    decoder = both.graphed()
    with pytest.raises(CacheError, match="no step to take back"):
        decoder.take_back()
    both.steps(4)
    decoder.step(both.token)
    decoder.take_back()
    same_windows(both)
    with pytest.raises(CacheError, match="no step to take back"):
        decoder.take_back()
    same_windows(both)
    assert both.steps(3)[-1]


@pytest.mark.parametrize("family", ["gemma2", "gemma3_text", "gpt_oss"])
def test_the_first_answer_of_a_model_with_windows_is_checked(family: str) -> None:
    both = twins_here(build(family)).pair()
    with step_graphs(both.device.model):
        for _ in range(8):
            both.ordinary(both.token[:, None])
            both.token = (both.token * 7 + 5) % 90 + 2
    assert while_graphed._fit.get(both.device.model) is True
    same_windows(both)


def test_models_on_several_devices_are_refused() -> None:
    model = small_caches.made()
    cache = small_caches.cache(model)
    with torch.no_grad():
        model(prompt(), past_key_values=cache)
    model.lm_head.to("meta")
    with pytest.raises(CacheError, match=r"several devices \(cpu, meta\).*load the model onto one device"):
        GraphedDecoder(model, cache)


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_kernels_that_no_graph_can_hold_are_refused_with_windows_and_without(family: str) -> None:
    model = build(family).double()
    model.set_attn_implementation("winnow")
    cache = CompressedCache(model, "snapkv(window=4) @ 12")
    with torch.no_grad():
        model(prompt(), past_key_values=cache)
    decoder = GraphedDecoder(model, cache)
    decoder.step(torch.tensor([3]))
    with pytest.raises(CacheError, match="decode attention runs in torch here"):
        decoder.step(torch.tensor([3]))
