"""Gated norms by the compiled kernel in models: which get it, and that models compute what they did."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNormGated

from support.families import build, prompt
from support.graphed import twins_here
from support.instruction_sets import needs_native
from support.stand_ins import assert_files_know_the_model, assert_same_logits, used_copies
from winnow.kernels import native
from winnow.models import gate_norms_in_one_pass
from winnow.models.gated_norms import CompiledGatedNorm, computes_the_same

pytestmark = [pytest.mark.usefixtures("one_thread"), needs_native]
FAMILIES = [each for each in ("qwen3_next", "qwen3_5_text", "olmo_hybrid") if each in CONFIG_MAPPING_NAMES]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def norm(dtype: torch.dtype = torch.float32, width: int = 24) -> nn.Module:
    made = Qwen3NextRMSNormGated(width, eps=1e-5).to(dtype)
    nn.init.normal_(made.weight)
    return made.requires_grad_(False)


def gated(model: nn.Module) -> list[nn.Module]:
    return [each for each in model.modules() if isinstance(each, CompiledGatedNorm)]


@pytest.mark.parametrize("family", FAMILIES)
def test_models_compute_what_they_did(family: str) -> None:
    model = build(family)
    plain = copy.deepcopy(model)
    gate_norms_in_one_pass(model)
    assert len(gated(model)) == model.config.layer_types.count("linear_attention")
    assert_same_logits(model, plain)


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_compute_what_they_did(dtype: torch.dtype) -> None:
    plain = norm(dtype)
    made = CompiledGatedNorm(plain)
    for shape in ((24,), (0, 24), (5, 24), (2, 3, 24)):
        hidden, gate = torch.randn(shape).to(dtype), (3 * torch.randn(shape)).to(dtype)
        torch.testing.assert_close(made(hidden, gate), plain(hidden, gate))


class Other(nn.Module):
    """A norm that is named like a gated one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.ones(24)), 1e-6

    def forward(self, hidden_states: Tensor, gate: Tensor) -> Tensor:
        raise NotImplementedError


class GatedFirstRMSNormGated(Other):
    def forward(self, hidden_states: Tensor, gate: Tensor) -> Tensor:
        return F.rms_norm(hidden_states * F.silu(gate), (24,), self.weight, self.variance_epsilon)


class SigmoidRMSNormGated(Other):
    def forward(self, hidden_states: Tensor, gate: Tensor) -> Tensor:
        return F.rms_norm(hidden_states, (24,), self.weight, self.variance_epsilon) * gate.sigmoid()


class OfPairsRMSNormGated(Other):
    def forward(self, hidden_states: Tensor, gate: Tensor) -> Tensor:
        first, _ = hidden_states.unbind(99)
        return first


@pytest.mark.parametrize("other", [GatedFirstRMSNormGated, SigmoidRMSNormGated, OfPairsRMSNormGated])
def test_norms_that_compute_anything_else_stay(other: type) -> None:
    model = nn.Sequential(other())
    assert CompiledGatedNorm.fits(model[0])
    assert not computes_the_same(model[0])
    gate_norms_in_one_pass(model)
    assert type(model[0]) is other


@pytest.mark.parametrize("family", ["falcon_h1", "llama"])
def test_families_with_other_norms_stay(family: str) -> None:
    model = build(family)
    gate_norms_in_one_pass(model)
    assert not gated(model)


def test_what_the_kernel_does_not_read_is_the_norms_own_to_do() -> None:
    plain = norm()
    made, hidden = CompiledGatedNorm(plain), torch.randn(3, 24)
    for gate in (torch.randn(1, 24), torch.randn(3, 24).double(), torch.randn(3, 1)):
        torch.testing.assert_close(made(hidden, gate), plain(hidden, gate))
    gate = torch.randn(3, 24, requires_grad=True)
    made(hidden, gate).sum().backward()
    assert gate.grad is not None
    laid_otherwise = torch.randn(24, 3).mT
    torch.testing.assert_close(made(laid_otherwise, laid_otherwise), plain(laid_otherwise, laid_otherwise))


def test_training_goes_the_models_own_way() -> None:
    model, ids = build("qwen3_next"), prompt(1, 9)
    gate_norms_in_one_pass(model)
    model(ids, labels=ids, use_cache=False).loss.backward()
    assert all(each.weight.grad is not None for each in gated(model))


def test_copies_and_files(tmp_path: Path) -> None:
    model = build("qwen3_next")
    plain = copy.deepcopy(model)
    gate_norms_in_one_pass(model)
    for each in used_copies(model):
        assert len(gated(each)) == 2
    assert_files_know_the_model(model, plain, tmp_path)


def test_without_the_library_norms_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "library", lambda: None)
    model = build("qwen3_next")
    gate_norms_in_one_pass(model)
    assert not gated(model)


def test_graphs_hold_the_kernel() -> None:
    model = build("qwen3_next")
    gate_norms_in_one_pass(model)
    both = twins_here(model).pair(rows=2)
    both.graphed()
    assert both.steps(5)[2:] == [True] * 3


@pytest.mark.parametrize(
    ("gate", "words"),
    [
        (torch.randn(3, 24).double(), "do not fit a norm"),
        (torch.randn(2, 24), r"gates \[2, 24\] do not fit inputs \[3, 24\]"),
    ],
)
def test_gates_that_do_not_fit_are_refused(gate: Any, words: str) -> None:
    plan = CompiledGatedNorm(norm()).compiled_weight().plan()
    with pytest.raises(ValueError, match=words):
        plan.run(torch.randn(3, 24), gate)
    with pytest.raises(ValueError, match="do not fit a layer of 24 inputs"):
        plan.run(torch.randn(3, 23), torch.randn(3, 23))
