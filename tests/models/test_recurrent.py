"""Linear attention and convolutions by kernels in models: which get them, and that models compute what they did."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from importlib import import_module
from inspect import signature
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.falcon_h1 import modeling_falcon_h1 as falcon
from transformers.models.glm5_next import modeling_glm5_next as glm
from transformers.models.kimi_linear import modeling_kimi_linear as kimi
from transformers.models.qwen3_next import modeling_qwen3_next as qwen

from support.families import FAMILIES, STATES, build, prompt
from support.graphed import twins_here
from support.instruction_sets import needs_native
from support.stand_ins import assert_files_know_the_model, assert_same_logits, used_copies
from winnow.kernels import convolution, delta, native, scan
from winnow.models import recur_in_one_pass
from winnow.models.cache_argument import with_cache
from winnow.models.convolutions import ConvolutionByKernel, StepByKernel
from winnow.models.delta import DeltaByKernel
from winnow.models.recurrent import BY_NAME
from winnow.models.scans import ScanByKernel, ScanStepByKernel

pytestmark = [pytest.mark.usefixtures("one_thread"), needs_native]
DELTA = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid", "kimi_linear", "bailing_hybrid")
SCANS = ("falcon_h1", "granitemoehybrid", "nemotron_h")
KNOWN = [each for each in (*DELTA, *SCANS, "lfm2") if each in CONFIG_MAPPING_NAMES]
NAMES = tuple(BY_NAME)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels that were called."""
    seen: list[str] = []

    def watched(name: str, own: Callable[..., Any], *given: Any) -> Any:
        seen.append(name)
        return own(*given)

    monkeypatch.setattr(scan, "scan", partial(watched, "scan", scan.scan))
    monkeypatch.setattr(delta, "recur", partial(watched, "recur", delta.recur))
    monkeypatch.setattr(convolution, "convolve", partial(watched, "convolve", convolution.convolve))
    return seen


def told(*given: Any, **named: Any) -> str:
    """A model's own function that says so."""
    return "own"


def given_for_delta(per_channel: bool = False) -> tuple[Tensor, ...]:
    """Queries, keys, values, decays and rates."""
    torch.manual_seed(0)
    query, key = torch.randn(2, 2, 6, 4, 8)
    decays = -torch.rand(2, 6, 4, *((8,) if per_channel else ()))
    return query, key, torch.randn(2, 6, 4, 6), decays, torch.rand(2, 6, 4)


def made_of(model: nn.Module) -> list[nn.Module]:
    return [each for each in model.modules() if hasattr(type(each), "_own_class")]


@pytest.mark.parametrize("family", KNOWN)
def test_functions_of_families_are_served(family: str) -> None:
    module = import_module(type(build(family)).__module__)
    found = [name for name in NAMES if hasattr(module, name)]
    assert len(found) == (2 if family == "lfm2" else 4)
    assert all(BY_NAME[name](getattr(module, name)) for name in found)


def test_functions_are_told_by_what_they_compute() -> None:
    own = qwen.torch_recurrent_gated_delta_rule

    def without_rates(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, **named: Any) -> Any:
        return own(query, key, value, g, torch.ones_like(beta), **named)

    def forgetting(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, **named: Any) -> Any:
        return own(query, key, value, g, beta, **{**named, "initial_state": None})

    def unscaled(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, **named: Any) -> Any:
        return own(query * 2, key, value, g, beta, **{**named, "use_qk_l2norm_in_kernel": False})

    def of_others(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Any:
        raise AssertionError("it is not called")

    def strict(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor) -> Any:
        raise AssertionError("it takes no states")

    tried = BY_NAME["torch_chunk_gated_delta_rule"]
    assert tried(own)
    for other in (without_rates, forgetting, unscaled, of_others, strict):
        assert not tried(other)


def test_kimi_delta_attention_is_told_by_what_it_computes() -> None:
    own, gated = kimi.recurrent_kimi_delta_attention, qwen.torch_recurrent_gated_delta_rule

    def with_mean_decays(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, **named: Any) -> Any:
        return own(query, key, value, g.mean(-1, keepdim=True).expand(g.shape), beta, **named)

    def forgetting(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, **named: Any) -> Any:
        return own(query, key, value, g, beta, **{**named, "initial_state": None})

    tried = BY_NAME["chunk_kimi_delta_attention"]
    for module in (kimi, glm):
        assert tried(module.chunk_kimi_delta_attention)
        assert tried(module.recurrent_kimi_delta_attention)
    for other in (with_mean_decays, forgetting, gated):
        assert not tried(other)
    assert not BY_NAME["torch_chunk_gated_delta_rule"](own)


def test_convolutions_are_told_by_what_they_compute() -> None:
    def other_way(hidden_states: Tensor, weight: Tensor, bias: Any = None, activation: Any = None) -> Tensor:
        return qwen.causal_conv1d_fn(hidden_states, weight.flip(-1), bias, activation)

    def inactive(hidden_states: Tensor, weight: Tensor, bias: Any = None, activation: Any = None) -> Tensor:
        return qwen.causal_conv1d_fn(hidden_states, weight, bias)

    def still(hidden_states: Tensor, conv_state: Tensor, weight: Tensor, bias: Any = None, activation: Any = None):
        return qwen.causal_conv1d_update(hidden_states, conv_state.clone(), weight, bias, activation)

    assert BY_NAME["causal_conv1d_fn"](qwen.causal_conv1d_fn)
    assert BY_NAME["causal_conv1d_update"](qwen.causal_conv1d_update)
    assert not BY_NAME["causal_conv1d_fn"](other_way)
    assert not BY_NAME["causal_conv1d_fn"](inactive)
    assert not BY_NAME["causal_conv1d_update"](still)


def test_scans_are_told_by_what_they_compute() -> None:
    own, step = falcon.mamba2_chunk_scan, falcon.mamba2_selective_state_update

    def unlimited(*given: Any, dt_limit: Any = None, **named: Any) -> Any:
        return own(*given, **named)

    unlimited.__signature__ = signature(own)

    def halved(hidden_states: Tensor, dt: Tensor, rates: Tensor, *given: Any, **named: Any) -> Any:
        return own(hidden_states, dt, rates / 2, *given, **named)

    halved.__signature__ = signature(own)

    def still(state: Tensor, *given: Any, **named: Any) -> Any:
        return step(state.clone(), *given, **named)

    still.__signature__ = signature(step)
    assert BY_NAME["mamba2_chunk_scan"](own)
    assert BY_NAME["mamba2_selective_state_update"](step)
    assert not BY_NAME["mamba2_chunk_scan"](unlimited)
    assert not BY_NAME["mamba2_chunk_scan"](halved)
    assert not BY_NAME["mamba2_selective_state_update"](still)


def given_for_a_scan() -> tuple[Tensor, ...]:
    """Inputs, steps, rates, B and C of a prompt."""
    torch.manual_seed(0)
    enter, leave = torch.randn(2, 2, 7, 2, 8)
    return torch.randn(2, 7, 4, 6), torch.randn(2, 7, 4), -torch.rand(4), enter, leave


def test_what_scans_do_not_read_is_the_models_own_to_do(calls: list[str]) -> None:
    given, named = given_for_a_scan(), {"D": torch.randn(4), "dt_bias": torch.randn(4), "dt_softplus": True}
    by_kernel, own = ScanByKernel(falcon.mamba2_chunk_scan), falcon.mamba2_chunk_scan
    torch.testing.assert_close(by_kernel(*given, 4, **named), own(*given, 4, **named), atol=1e-5, rtol=1e-5)
    assert calls == ["scan"]
    by_kernel(*(each.double() for each in given), 4)
    grown = [each.clone().requires_grad_() for each in given]
    by_kernel(*grown, 4, D=nn.Parameter(torch.randn(4))).sum().backward()
    assert all(each.grad is not None for each in grown)
    through = nn.Parameter(torch.randn(4))
    by_kernel(*given, 4, D=through).sum().backward()
    assert through.grad is not None
    assert ScanByKernel(told)(*given, 4, seq_idx=torch.zeros(1)) == "own"
    assert ScanByKernel(told)(*given, 4, z=torch.zeros(2, 7, 4, 6)) == "own"
    assert calls == ["scan"]


@torch.no_grad()
def test_channels_whose_steps_differ_are_the_models_own_to_scan(calls: list[str]) -> None:
    inputs, steps, rates, enter, leave = given_for_a_scan()
    shaped = rates[:, None, None].expand(4, 6, 8), enter[:, 0], leave[:, 0]
    for dt, called in ((steps[:, 0, :, None].expand(2, 4, 6), 1), (torch.randn(2, 4, 6), 0)):
        calls.clear()
        states = torch.ones(2, 2, 4, 6, 8)
        found = ScanStepByKernel(falcon.mamba2_selective_state_update)(states[0], inputs[:, 0], dt, *shaped)
        expected = falcon.mamba2_selective_state_update(states[1], inputs[:, 0], dt, *shaped)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(*states, atol=1e-5, rtol=1e-5)
        assert len(calls) == called


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", KNOWN)
def test_models_compute_what_they_did(family: str, dtype: torch.dtype, calls: list[str]) -> None:
    """A prompt in two pieces, and tokens after it."""
    model = build(family).to(dtype)
    plain = copy.deepcopy(model)
    recur_in_one_pass(model)
    calls.clear()
    found, expected = (logits_of(each) for each in (model, plain))
    scale = float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=0, atol=(1e-4 if dtype == torch.float32 else 6e-2) * scale)
    other = {"recur"} if family in DELTA else {"scan"} if family in SCANS else set()
    assert set(calls) == {"convolve", *other}
    assert made_of(model)
    assert not made_of(plain)


def logits_of(model: PreTrainedModel) -> Tensor:
    ids, cache, found = prompt(2, 75), DynamicCache(config=model.config), []
    for first, last in ((0, 70), (70, 73), (73, 74), (74, 75)):
        piece = {"position_ids": torch.arange(first, last).expand(2, -1), **with_cache(model, cache)}
        found.append(model(ids[:, first:last], **piece).logits.float())
    return torch.cat(found, 1)


def test_a_state_is_changed_in_place_and_a_missing_one_is_zeros() -> None:
    given = given_for_delta()
    by_kernel = DeltaByKernel(qwen.torch_recurrent_gated_delta_rule)
    outputs, state = by_kernel(*given, output_final_state=True)
    again = torch.zeros(2, 4, 8, 6)
    other, same = by_kernel(*given, initial_state=again, output_final_state=True)
    assert same is again
    assert torch.equal(state, again)
    assert torch.equal(outputs, other)
    assert by_kernel(*given)[1] is None


@torch.no_grad()
@pytest.mark.parametrize("per_channel", [False, True])
def test_numbers_of_heads_that_lie_apart_are_laid_beside_each_other(per_channel: bool, calls: list[str]) -> None:
    given = given_for_delta(per_channel)
    by_kernel = DeltaByKernel(told, per_channel)
    apart = [each.transpose(1, 3).contiguous().transpose(1, 3) for each in given[:3]]
    assert torch.equal(by_kernel(*apart, *given[3:])[0], by_kernel(*given)[0])
    assert calls == ["recur", "recur"]


@torch.no_grad()
def test_decays_in_half_precision_are_widened(calls: list[str]) -> None:
    given = tuple(each.bfloat16() for each in given_for_delta(per_channel=True))
    expected = kimi.chunk_kimi_delta_attention(*given, output_final_state=True)
    found = DeltaByKernel(kimi.chunk_kimi_delta_attention, per_channel=True)(*given, output_final_state=True)
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-4)
    assert calls == ["recur"]


def test_what_kernels_do_not_read_is_the_models_own_to_do(calls: list[str]) -> None:
    given = given_for_delta()
    by_kernel = DeltaByKernel(qwen.torch_chunk_gated_delta_rule)
    expected = qwen.torch_chunk_gated_delta_rule(*given)[0]
    torch.testing.assert_close(by_kernel(*given)[0], expected, atol=1e-5, rtol=0)
    assert calls == ["recur"]
    by_kernel(*(each.double() for each in given))
    grown = [each.clone().requires_grad_() for each in given]
    by_kernel(*grown)[0].sum().backward()
    assert all(each.grad is not None for each in grown)
    assert DeltaByKernel(told)(*given, cu_seqlens=torch.tensor([0, 6])) == "own"
    assert DeltaByKernel(told)(*given_for_delta(per_channel=True)) == "own"
    assert DeltaByKernel(told, per_channel=True)(*given) == "own"
    inputs, weight, bias = torch.randn(2, 9, 5), torch.randn(9, 4), nn.Parameter(torch.randn(9))
    by_kernel = ConvolutionByKernel(qwen.causal_conv1d_fn)
    by_kernel(inputs, weight, bias, activation="silu").sum().backward()
    assert bias.grad is not None
    assert ConvolutionByKernel(told)(inputs, weight, None, seq_idx=torch.zeros(1)) == "own"
    relu = by_kernel(inputs, weight, None, activation="relu")
    torch.testing.assert_close(relu, F.relu(qwen.causal_conv1d_fn(inputs, weight, None)))
    step = StepByKernel(qwen.causal_conv1d_update)
    step(inputs[..., :1].double(), torch.zeros(2, 9, 4).double(), weight.double(), None)
    assert calls == ["recur"]


@torch.no_grad()
def test_channels_that_lie_apart_are_laid_beside_each_other(calls: list[str]) -> None:
    inputs, weight = torch.randn(2, 9, 5), torch.randn(9, 4)
    found = ConvolutionByKernel(qwen.causal_conv1d_fn)(inputs, weight, None, activation="silu")
    torch.testing.assert_close(found, qwen.causal_conv1d_fn(inputs, weight, None, activation="silu"))
    assert calls == ["convolve"]


def test_training_goes_the_models_own_way(calls: list[str]) -> None:
    model, ids = build("qwen3_next"), prompt(1, 9)
    recur_in_one_pass(model)
    calls.clear()
    model.train()
    model(ids, labels=ids, use_cache=False).loss.backward()
    assert all(each.grad is not None for name, each in model.named_parameters() if "linear_attn" in name)
    assert not calls


@torch.no_grad()
def test_hooks_of_accelerate_are_called(calls: list[str]) -> None:
    model = build("qwen3_next")
    plain = copy.deepcopy(model)
    recur_in_one_pass(model)
    layer, hooked = made_of(model)[0], []
    layer.conv1d._hf_hook = SimpleNamespace(pre_forward=hooked.append, post_forward=lambda *_: None)
    calls.clear()
    assert_same_logits(model, plain)
    assert hooked == [layer.conv1d]
    assert len(calls) == 2 * (len(made_of(model)) - 1)


def test_copies_and_files(tmp_path: Any) -> None:
    model = build("qwen3_next")
    plain = copy.deepcopy(model)
    recur_in_one_pass(model)
    for each in used_copies(model):
        assert len(made_of(each)) == len(made_of(model)) == 2
    assert_files_know_the_model(model, plain, tmp_path)


def test_without_the_library_layers_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "library", lambda: None)
    model = build("qwen3_next")
    recur_in_one_pass(model)
    assert not made_of(model)


@pytest.mark.parametrize("family", ["qwen3_next", "lfm2", "falcon_h1", "kimi_linear"])
@pytest.mark.parametrize("rows", [1, 2])
def test_graphs_hold_the_kernels(family: str, rows: int) -> None:
    model = build(family)
    recur_in_one_pass(model)
    both = twins_here(model).pair(rows=rows)
    both.graphed()
    assert both.steps(6)[2:] == [True] * 4
    both.ordinary(prompt(rows, length=1, seed=8))


def test_families_without_such_layers_stay() -> None:
    for family in FAMILIES:
        if family not in KNOWN:
            model = build(family)
            recur_in_one_pass(model)
            assert not made_of(model), family
    assert set(STATES) <= {*DELTA, *SCANS}
