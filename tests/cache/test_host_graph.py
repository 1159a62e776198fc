"""Steps of a CPU as graphs: what is noted and done again, what cannot be, and where a model goes on without."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from ctypes import c_int32
from itertools import product
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import PreTrainedModel

from support.families import build, prompt
from support.graphed import Pair, twins_here
from support.turns import each_value
from winnow import CacheError, CompressedCache, GraphedDecoder, step_graphs
from winnow.cache import graphed, host_graph, while_graphed
from winnow.cache.host_graph import HostGraph, _together
from winnow.cache.host_step import TrialStep
from winnow.cache.trial import Trial
from winnow.errors import GraphError
from winnow.kernels import native, rotating
from winnow.kernels.linear import outruns_torch
from winnow.kernels.norm import NormWeight
from winnow.kernels.recording import refuse_recording, this_thread
from winnow.models import mixture, quantize_weights
from winnow.models.loading import use_own_layers

pytestmark = pytest.mark.usefixtures("one_thread")
HERE = torch.device("cpu")
WIDTH = 8


def numbers(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def replayed(work: Callable[[Tensor], Tensor], *inputs: Tensor) -> None:
    """Checks that a graph of work gives for each of some inputs what work gives, to the bit."""
    held = inputs[0].clone()
    graph = HostGraph(lambda: work(held), HERE)
    for each in inputs:
        held.copy_(each)
        expected = work(each.clone())
        if each is not inputs[0]:
            graph.replay()
        assert torch.equal(graph.output, expected)
        if each is inputs[0]:
            graph.replay()  # finds it done
            assert torch.equal(graph.output, expected)


def added_in_place(x: Tensor) -> Tensor:
    total = torch.zeros(WIDTH)
    total += x.sum(0)
    total[2:4].mul_(3)
    return total + x


def of_views(x: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return torch.cat([right.transpose(0, 1).reshape(-1), left[:, None].expand(-1, 2, -1).flatten()])


def of_several(x: Tensor) -> Tensor:
    values, places = x.topk(3, -1)
    ordered, order = places.sort(-1)
    return values.gather(-1, order) + ordered + x[torch.arange(len(x)), places[:, 0]][:, None]


def of_kinds(x: Tensor) -> Tensor:
    constant = torch.tensor([2.0] * WIDTH)
    half = (x.to(torch.bfloat16) * constant.to(torch.bfloat16)).float()
    constant.add_(1)
    return torch.where(x > 0, half, nn.functional.silu(x)) * constant + torch.full_like(x, 0.5).masked_fill(x < 1, 2.0)


@pytest.mark.parametrize("work", [added_in_place, of_views, of_several, of_kinds])
def test_operators_are_done_again(work: Callable[[Tensor], Tensor]) -> None:
    replayed(work, *(numbers(4, WIDTH, seed=seed) for seed in range(4)))


@given(
    st.lists(st.sampled_from(["add", "mul_", "cat", "view", "mm", "softmax", "half"]), max_size=12), st.integers(1, 5)
)
def test_any_order_of_operators_is_done_again(names: list[str], rows: int) -> None:
    square = numbers(WIDTH, WIDTH, seed=9) / WIDTH
    steps: dict[str, Callable[[Tensor], Tensor]] = {
        "add": lambda x: x + x.mean(0),
        "mul_": lambda x: x.clone().mul_(0.5),
        "cat": lambda x: torch.cat([x[1:], x[:1]]),
        "view": lambda x: x.view(-1).view(x.shape).transpose(0, 1).transpose(0, 1),
        "mm": lambda x: x @ square,
        "softmax": lambda x: x.softmax(-1),
        "half": lambda x: x.bfloat16().float(),
    }

    def work(x: Tensor) -> Tensor:
        for name in names:
            x = steps[name](x)
        return x + 0

    replayed(work, *(numbers(rows, WIDTH, seed=seed) for seed in range(3)))


def test_calls_of_the_library_are_made_again() -> None:
    plan = NormWeight(numbers(WIDTH, seed=5), 1e-6).plan()
    replayed(lambda x: plan.run(x * 2) + 1, *(numbers(3, WIDTH, seed=seed) for seed in range(3)))


SUMS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], int]] = {
    "a residual": (lambda x, y: x + y, 4),
    "seen in another shape": (lambda x, y: (x.flatten() + y.flatten()).view(x.shape), 4),
    "of a row": (lambda x, y: x + y[0], 5),
    "of a multiple": (lambda x, y: torch.add(x, y, alpha=2), 5),
    "of other places": (lambda x, y: x.mT.contiguous().mT + y, 7),
    "of a number": (lambda x, y: y + 1.5, 5),
    "in part": (lambda x, y: (x + y)[:1], 5),
    "not the last": (lambda x, y: (x + y, x.exp_())[0], 6),
    "in place": (lambda x, y: y.add_(x), 5),
}


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_sum_that_a_norm_follows_is_done_with_it(dtype: torch.dtype, name: str) -> None:
    summed, calls = SUMS[name]
    plan = NormWeight(numbers(WIDTH, seed=5).to(dtype), 1e-6).plan()

    def work(x: Tensor) -> Tensor:
        total = summed(x.clone(), x * 2)
        return total * plan.run(total)

    inputs = [numbers(3, WIDTH, seed=seed).to(dtype) for seed in range(3)]
    replayed(work, *inputs)
    assert len(HostGraph(lambda: work(inputs[0]), HERE)._recording._calls) == calls


LOOKS: list[Callable[[Tensor], Any]] = [
    lambda x: float(x.sum()),
    lambda x: bool((x > 0).all()),
    lambda x: x.tolist(),
    lambda x: x.numpy(),
    lambda x: x[x > 0],
    lambda x: x.nonzero(),
    lambda x: torch.equal(x, x),
    lambda x: x.abs().argsort().unique(),
]


@pytest.mark.parametrize("look", LOOKS)
def test_work_in_which_the_host_looks_at_numbers_is_refused(look: Callable[[Tensor], Any]) -> None:
    with pytest.raises(RuntimeError, match="gives numbers to the host"):
        HostGraph(lambda: (look(held), held)[1], HERE)
    assert this_thread.recording is None
    look(held)


held = numbers(4)


def test_calls_that_nobody_notes_are_refused() -> None:
    rows = numbers(2, WIDTH)
    with pytest.raises(RuntimeError, match="rotation cannot be recorded"):
        HostGraph(lambda: rotating.rotated_rows(rows), HERE)
    refuse_recording("anything")  # where nothing is recorded


def test_work_that_makes_too_much_is_refused() -> None:
    with (
        mock.patch("winnow.cache.host_graph.MOST_BYTES", 1000),
        pytest.raises(RuntimeError, match="all of which would stay"),
    ):
        HostGraph(lambda: torch.zeros(100) + torch.zeros(200)[:100], HERE)


def test_the_number_of_threads_is_that_of_the_replay() -> None:
    plan, rows, seen = NormWeight(numbers(WIDTH), 1e-6).plan(), numbers(3, WIDTH), []
    graph = HostGraph(lambda: plan.run(rows), HERE)
    graph.replay()  # finds it done
    graph.replay()
    (repeated,) = graph._recording._together
    repeat = repeated._repeat

    def counted(calls: Any, count: int, threads: c_int32, done: Any) -> int:
        seen.append(threads.value)
        return int(repeat(calls, count, threads, done))

    repeated._repeat = counted
    threads = torch.get_num_threads()
    graph.replay()
    try:
        torch.set_num_threads(threads + 1)
        graph.replay()
    finally:
        torch.set_num_threads(threads)
    assert seen == [threads, threads + 1]


# --- models ----------------------------------------------------------------------------------------------------


def with_kernels(model: PreTrainedModel, bits: int) -> PreTrainedModel:
    """A model as commands load it, in 16, 8 or 4 bits."""
    if bits < 16:
        quantize_weights(model, f"int{bits}")
    use_own_layers(model)
    return model


def exact(both: Pair, count: int = 5) -> None:
    """Checks that replayed steps are ordinary ones to the bit."""
    both.graphed()
    with mock.patch("support.graphed.CLOSE", 0.0):
        assert both.steps(count) == [False, False, *[True] * (count - 2)]


@pytest.mark.parametrize(
    ("case", "rows"),
    each_value([*product(["qwen2", "qwen3", "mixtral", "qwen3_moe", "gemma3_text", "gpt_oss"], [16, 8, 4])], [1, 3]),
)
def test_layers_and_experts_by_the_kernels_are_replayed(case: tuple[str, int], rows: int) -> None:
    family, bits = case
    model = build(family, hidden_size=64, intermediate_size=128, moe_intermediate_size=64).to(torch.bfloat16)
    both = twins_here(with_kernels(model, bits)).pair(rows=rows)
    exact(both)


@pytest.mark.parametrize("bits", [16, 8, 4])
def test_experts_of_a_token_are_chosen_without_the_host(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replayed step asks nobody who was chosen, where the kernels multiply them."""
    if not outruns_torch():
        pytest.skip("torch multiplies experts of this processor, one after another")

    def refuse(*_: object) -> None:
        raise AssertionError("the host looks at experts")

    monkeypatch.setattr(mixture._Chosen, "counted", property(refuse))
    monkeypatch.setattr(host_graph._Recording, "anew", refuse)
    model = build("qwen3_moe", hidden_size=64, intermediate_size=128, moe_intermediate_size=64).to(torch.bfloat16)
    exact(twins_here(with_kernels(model, bits)).pair(rows=3))


@pytest.mark.parametrize("method", ["full", "full+kivi", "full+bits(8)", "adakv(window=4)+spark(0.5) @ 12", "h2o @ 12"])
def test_every_format_is_replayed(method: str) -> None:
    exact(twins_here(build("llama")).pair(method, rows=2))


def test_replays_go_on_between_passes_of_several_tokens() -> None:
    both, captures = twins_here(build("llama")).pair(), []

    def counted(*given: Any) -> HostGraph:
        captures.append(given)
        return HostGraph(*given)

    with mock.patch.object(graphed, "HostGraph", counted), step_graphs(both.device.model):
        for token in range(6):
            both.ordinary(torch.tensor([[token]]))
        for token in range(3):
            both.ordinary(torch.tensor([[token, 7, 8]]))
            both.each(lambda cache: cache.crop(-2))
            both.ordinary(torch.tensor([[token + 1]]))
    assert len(captures) == 1


def test_a_trial_that_cannot_be_captured_costs_nothing_else() -> None:
    both = twins_here(build("llama")).pair(length=12)
    model, tokens, trial = both.device.model, torch.tensor([[3, 4, 5]]), Trial(both.cache)

    def tried() -> None:
        with trial.passing():
            found = both.device.run(both.cache, tokens)
        torch.testing.assert_close(found, both.here.run(both.expected, tokens), rtol=0, atol=1e-5)
        trial.end(3, 2)
        both.expected.crop(-2)
        both.same()

    with step_graphs(model):
        for token in range(4):
            both.ordinary(torch.tensor([[token]]))
        for _ in range(4):
            with mock.patch.object(TrialStep, "run", side_effect=GraphError("another way")):
                tried()
            for token in range(3):
                both.ordinary(torch.tensor([[token]]))


def test_inference_mode_and_its_absence_take_turns() -> None:
    both = twins_here(build("llama")).pair()
    both.graphed()
    for index in range(6):
        with torch.inference_mode() if index % 2 else nullcontext():
            both.steps(1)


def test_a_prompt_of_inference_mode_is_followed_by_graphs() -> None:
    places = twins_here(build("llama"))
    with torch.inference_mode():
        both = places.pair()
    exact(both)


@pytest.mark.parametrize("call", [0, 3, -1])
@pytest.mark.parametrize("problem", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("rows", [1, 2])
def test_a_replay_that_is_broken_off_leaves_the_cache_as_it_was(call: int, problem: type, rows: int) -> None:
    both = twins_here(build("llama")).pair("snapkv(window=4) @ 12", rows=rows, fold_every=20)
    decoder = both.graphed()
    both.steps(4)
    recording = decoder._graph.captured._recording
    broken = list(recording._calls)
    broken[call] = mock.Mock(side_effect=problem)
    with mock.patch.object(recording, "_together", list(_together(broken, recording.threads))), pytest.raises(problem):
        decoder.step(both.token)
    both.same()
    both.ordinary(prompt(rows, length=1, seed=4))
    assert both.steps(3)[-1]


def test_ctrl_c_while_tokens_are_counted_leaves_the_cache_as_it_was() -> None:
    both = twins_here(build("llama", num_hidden_layers=2)).pair("snapkv(window=8) @ 12", length=5, fold_every=20)
    decoder = both.graphed()
    both.steps(4)
    failing = mock.patch.object(decoder._layers[1], "count_token", side_effect=KeyboardInterrupt)
    with failing, pytest.raises(KeyboardInterrupt):
        decoder.step(both.token)
    both.same()
    assert both.steps(3)[-1]


@pytest.mark.parametrize("fold_every", [None, 20])
def test_ctrl_c_right_behind_a_capture_leaves_the_cache_as_it_was(fold_every: int | None) -> None:
    # By then the kernels have counted the tokens, and the layers have not.
    both = twins_here(build("llama")).pair("snapkv(window=8) @ 12", length=12, fold_every=fold_every)
    decoder = both.graphed()
    both.steps(1)
    failing = mock.patch.object(graphed, "_Graph", side_effect=KeyboardInterrupt)
    with failing, pytest.raises(KeyboardInterrupt):
        decoder.step(both.token)
    both.same()
    both.ordinary(prompt(length=1, seed=4))
    assert both.steps(4)[-1]
    with Trial(both.cache).passing(), torch.no_grad():
        tokens, positions = torch.tensor([[3, 4]]), torch.full((1, 2), both.cache.get_seq_length()) + torch.arange(2)
        assert decoder.attempt(tokens, positions) is None
        assert decoder.attempt(tokens, positions) is None
        with failing, pytest.raises(KeyboardInterrupt):
            decoder.attempt(tokens, positions)
    both.same()
    both.ordinary(prompt(length=1, seed=4))


def with_hook(model: PreTrainedModel) -> None:
    model.model.layers[0].mlp.register_forward_hook(lambda *_: None)


def with_own_forward(model: PreTrainedModel) -> None:
    layer = model.model.layers[0].mlp
    layer.forward = layer.forward


def with_compiled_layer(model: PreTrainedModel) -> None:
    model.model.layers[0]._compiled_call_impl = model.model.layers[0]._call_impl


@pytest.mark.parametrize("change", [with_hook, with_own_forward, with_compiled_layer])
def test_what_others_see_of_modules_is_not_hidden_from_them(change: Callable[[PreTrainedModel], None]) -> None:
    both = twins_here(build("llama")).pair()
    both.graphed()
    both.up_to_capture()
    change(both.device.model)
    with pytest.raises(CacheError, match=r"cannot be captured in a graph on a CPU; call the model itself"):
        both.decoder.step(both.token)
    both.same()
    both.ordinary(prompt(length=1))


def test_hooks_that_transformers_left_change_nothing() -> None:
    both = twins_here(build("llama")).pair()
    with torch.no_grad():
        both.device.model(prompt(), output_hidden_states=True)
    assert any(module._forward_hooks for module in both.device.model.modules())
    exact(both)


def test_short_answers_are_not_worth_a_graph() -> None:
    model = build("llama")
    model.set_attn_implementation("winnow")
    with step_graphs(model, while_graphed.FEWEST_HERE - 1):
        assert "forward" not in vars(model)
    with step_graphs(model, while_graphed.FEWEST_HERE):
        assert "forward" in vars(model)


def test_without_kernels_models_decode_as_ever() -> None:
    model = build("llama")
    model.set_attn_implementation("winnow")
    with mock.patch.object(native, "library", return_value=None), step_graphs(model):
        assert "forward" not in vars(model)


def test_a_graph_is_not_copied_with_the_cache() -> None:
    both = twins_here(build("llama")).pair()
    both.graphed()
    both.steps(3)
    fork, token = copy.deepcopy(both.cache), torch.tensor([5])
    expected = both.here.run(copy.deepcopy(both.expected), token[:, None])
    both.steps(2)
    decoder = GraphedDecoder(both.device.model, fork)
    assert torch.allclose(decoder.step(token), expected, atol=1e-5)


def test_replays_use_no_more_memory() -> None:
    both = twins_here(build("llama")).pair()
    decoder = both.graphed()
    both.steps(3)
    addresses = {decoder._graph.captured.output.data_ptr() for _ in range(4) if both.steps(1)}
    assert len(addresses) == 1
    assert isinstance(both.cache, CompressedCache)
