"""Experts by the compiled kernels: what they compute in every form that transformers has, and when they do not."""

from __future__ import annotations

import gc
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from support.experts import EXPERTS, FAMILIES, FORMS, Form, Sizes, made, oracle, routed
from support.families import build, prompt
from support.instruction_sets import needs_native
from support.stand_ins import assert_files_know_the_model, assert_same_logits, used_copies
from winnow.models import experts as subject
from winnow.models import mixture, read_experts_directly

pytestmark = [pytest.mark.usefixtures("one_thread"), needs_native]
SIZES = Sizes(width=24, inner=40)


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the processor, its kernels serve experts."""
    monkeypatch.setattr(subject, "outruns_torch", lambda: True)


def replaced(model: PreTrainedModel) -> PreTrainedModel:
    """The model, once its experts are Winnow's."""
    read_experts_directly(model)
    assert model.config._experts_implementation == subject.IMPLEMENTATION
    return model


@pytest.mark.parametrize("tokens", [1, 7, 100])  # of 100 more choose an expert than count as few
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_experts_of_every_form_compute_what_the_oracle_does(form: Form, dtype: torch.dtype, tokens: int) -> None:
    experts, given = made(form, SIZES, dtype), routed(tokens, SIZES.width, dtype)
    found = subject.experts_forward(experts, *given)
    assert subject._KNOWN[experts].enter is not None
    assert found.dtype == dtype
    expected = oracle(experts, *given)
    room = 1e-5 if dtype == torch.float32 else 2e-2 if dtype == torch.bfloat16 else 3e-3
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=room * float(expected.abs().max()))


def test_no_tokens_are_none() -> None:
    found = subject.experts_forward(made(FORMS[1], SIZES, torch.float32), *routed(0, SIZES.width, torch.float32))
    assert found.shape == (0, SIZES.width)


def test_what_experts_give_may_be_normed() -> None:
    experts, given = made(FORMS[1], SIZES, torch.float32), routed(7, SIZES.width, torch.float32)
    norm = nn.RMSNorm(SIZES.width, eps=1e-6).requires_grad_(False)
    experts.has_post_expert_norm, experts.post_expert_norm = True, norm
    expected = oracle(experts, *given, finish=deepcopy(norm).double())
    torch.testing.assert_close(subject.experts_forward(experts, *given).double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.usefixtures("everywhere")
def test_models_compute_what_they_did(family: str) -> None:
    plain = build(family)
    model = replaced(deepcopy(plain))
    assert_same_logits(model, plain)
    assert any(each in subject._KNOWN for each in model.modules()), "none of its experts came to the kernels"


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss"])  # the second's are transposed
@pytest.mark.usefixtures("everywhere")
def test_copies_and_files_are_those_of_the_model(family: str, tmp_path: Path) -> None:
    plain = build(family)
    model = replaced(deepcopy(plain))
    for copied in used_copies(model):
        assert_same_logits(copied, plain)
    assert_files_know_the_model(model, plain, tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.config._experts_implementation != subject.IMPLEMENTATION


@pytest.mark.usefixtures("everywhere")
@torch.no_grad()
def test_transposed_weights_lie_as_the_kernels_read_them() -> None:
    model = replaced(build("gpt_oss"))
    model(prompt(1, 3))
    found = [stacks for module in model.modules() if (stacks := subject._KNOWN.get(module)) is not None]
    plans = [side._plan for stacks in found for side in (stacks.enter, stacks.leave)]
    assert plans
    assert None not in plans


@pytest.mark.usefixtures("everywhere")
def test_parameters_may_change_and_move() -> None:
    plain = build("mixtral")
    model = replaced(deepcopy(plain))
    for change in (_doubled, _elsewhere):
        assert_same_logits(model, plain)
        change(model)
        change(plain)
        assert_same_logits(model, plain)


@torch.no_grad()
def _doubled(model: PreTrainedModel) -> None:
    for name, parameter in model.named_parameters():
        if "experts" in name:
            parameter.mul_(2)


def _elsewhere(model: PreTrainedModel) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data.clone() / 2


@pytest.mark.parametrize("follow", ["gradients", "autocast", "other parameters"])
def test_what_is_followed_is_transformers_own(follow: str) -> None:
    experts, (tokens, *chosen) = made(FORMS[0], SIZES, torch.float32), routed(7, SIZES.width, torch.float32)
    expected = oracle(experts, tokens, *chosen)
    if follow == "gradients":
        tokens.requires_grad_()
    if follow == "other parameters":
        del experts.down_proj
        experts.down_proj = torch.zeros(EXPERTS, *SIZES)
        expected = torch.zeros(7, SIZES.width)
    with torch.autocast("cpu", torch.bfloat16, enabled=follow == "autocast"):
        found = subject.experts_forward(experts, tokens, *chosen)
    assert experts not in subject._KNOWN
    torch.testing.assert_close(found.double(), expected.double(), rtol=0, atol=0.1 if follow == "autocast" else 1e-4)
    assert found.requires_grad == (follow == "gradients")


def test_nothing_of_a_model_that_is_gone_stays() -> None:
    experts = made(FORMS[0], SIZES, torch.float32)
    subject.experts_forward(experts, *routed(3, SIZES.width, torch.float32))
    before = len(subject._KNOWN), len(mixture._KNOWN)
    del experts
    gc.collect()
    assert (len(subject._KNOWN), len(mixture._KNOWN)) == tuple(each - 1 for each in before)


@pytest.mark.parametrize(
    ("family", "prepare"),
    [
        ("mixtral", lambda model: model.set_experts_implementation("eager")),
        ("llama", lambda model: None),
    ],
    ids=["another implementation was chosen", "no experts"],
)
@pytest.mark.usefixtures("everywhere")
def test_other_models_stay_as_they_are(family: str, prepare: Callable[[PreTrainedModel], None]) -> None:
    model = build(family)
    prepare(model)
    before = model.config._experts_implementation
    read_experts_directly(model)
    assert model.config._experts_implementation == before
    with torch.no_grad():
        assert model(prompt(1, 3)).logits.isfinite().all()
