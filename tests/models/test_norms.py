"""Norms by the compiled kernels in models: which are replaced, and that models compute what they did."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import RMSNorm
from torch.nn.utils import parametrize, prune
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNorm

from support.dense_attention import DTYPES
from support.families import EVERY, build, build_any
from support.instruction_sets import needs_native
from support.stand_ins import assert_files_know_the_model, assert_same_answers, assert_same_logits, loaded, used_copies
from winnow.kernels import native
from winnow.models import normalize_in_one_pass, norms
from winnow.models.norms import CompiledRMSNorm, computes_the_same, form_of

LLAMAS, OLMOS, GEMMAS = norms.FORMS
FORMS = {
    LlamaRMSNorm: LLAMAS,
    Qwen3RMSNorm: LLAMAS,
    Olmo2RMSNorm: OLMOS,
    GptOssRMSNorm: OLMOS,
    RMSNorm: OLMOS,
    Gemma2RMSNorm: GEMMAS,
    Qwen3NextRMSNorm: GEMMAS,
}
pytestmark = [pytest.mark.usefixtures("one_thread"), needs_native]


def norm(dtype: torch.dtype = torch.float32, kind: type[nn.Module] = LlamaRMSNorm, width: int = 48) -> nn.Module:
    """A norm with a weight that is not all ones, for evaluation."""
    made = kind(width, eps=1e-5)
    made.weight.data = torch.randn(width, generator=torch.Generator().manual_seed(1))
    return made.to(dtype).requires_grad_(False)


def replaced(model: nn.Module) -> list[nn.Module]:
    return [each for each in model.modules() if isinstance(each, CompiledRMSNorm)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", FORMS)
def test_a_norm_computes_what_it_did(kind, dtype):
    plain = norm(dtype, kind)
    model = nn.Sequential(copy.deepcopy(plain))
    normalize_in_one_pass(model)
    made = model[0]
    assert isinstance(made, CompiledRMSNorm)
    assert made._form == FORMS[kind] or dtype == torch.float32
    for shape in ((1, 1), (2, 3), (5, 7, 4), (0,)):
        given = torch.randn(*shape, 48).to(dtype)
        found, expected = made(given), plain(given)
        torch.testing.assert_close(found, expected, rtol=4 * torch.finfo(dtype).eps, atol=0)
    assert repr(made).replace("CompiledRMSNorm", kind.__name__) == repr(plain)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", FORMS)
def test_a_norm_is_of_one_form(kind, dtype):
    """Another one's roundings would pass for it nowhere."""
    forms = [form for form in norms.FORMS if computes_the_same(norm(dtype, kind), form)]
    assert forms == [FORMS[kind]]


class SquaredRMSNorm(LlamaRMSNorm):
    """A norm that nobody has: a weight of ones would not tell it from others."""

    def forward(self, hidden_states):
        return super().forward(hidden_states) * self.weight


class OneMoreRMSNorm(LlamaRMSNorm):
    """One more than the weight, behind a rounding."""

    def forward(self, hidden_states):
        return super().forward(hidden_states) / self.weight * (1 + self.weight)


OTHERS = {
    "one more than the weight, rounded first": lambda: norm(torch.bfloat16, OneMoreRMSNorm),
    "the weight's square": lambda: SquaredRMSNorm(48),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_norms_that_compute_something_else_stay(other):
    model = nn.Sequential(other())
    assert not CompiledRMSNorm.fits(model[0]) or form_of(model[0]) is None
    normalize_in_one_pass(model)
    assert not replaced(model)


def test_what_has_not_the_parts_of_such_a_norm_stays():
    class ScaledRMSNorm(LlamaRMSNorm):
        def forward(self, hidden_states, scale=2):
            return super().forward(hidden_states) * scale

    biased = norm()
    biased.bias = nn.Parameter(torch.zeros(48))
    for other in (
        nn.LayerNorm(48),
        norm().to("meta"),
        norm().double(),
        CompiledRMSNorm(norm()),
        ScaledRMSNorm(48),
        biased,
    ):
        assert not CompiledRMSNorm.fits(other)


def test_norms_with_other_settings_are_tried_anew():
    class SometimesRMSNorm(LlamaRMSNorm):
        doubled = False

        def forward(self, hidden_states):
            return super().forward(hidden_states) * (2 if self.doubled else 1)

    model = nn.Sequential(*(SometimesRMSNorm(48) for _ in range(3)))
    model[1].doubled = True
    normalize_in_one_pass(model)
    assert [isinstance(each, CompiledRMSNorm) for each in model] == [True, False, True]


def test_norms_with_a_forward_of_their_own_stay():
    wrapped = norm()
    wrapped.forward = lambda hidden_states: hidden_states
    assert not CompiledRMSNorm.fits(wrapped)


@pytest.mark.parametrize("name", EVERY)
def test_models_compute_what_they_did(name):
    model = build_any(name)
    plain = copy.deepcopy(model)
    normalize_in_one_pass(model)
    assert_same_logits(model, plain)
    if name in ("llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "gemma3_text", "olmo2", "olmo3", "gpt_oss"):
        assert replaced(model)
        norms = [each for each in model.modules() if type(each).__name__.endswith("RMSNorm")]
        assert norms == replaced(model)


def test_files_know_the_model_and_its_parameters_stay(tmp_path):
    model = build("llama")
    plain = copy.deepcopy(model)
    normalize_in_one_pass(model)
    for each in used_copies(model):
        assert len(replaced(each)) == len(replaced(model)) > 0
    assert_files_know_the_model(model, plain, tmp_path)


def test_gradients_are_those_of_the_norm():
    plain = norm().requires_grad_(True)
    made = CompiledRMSNorm(copy.deepcopy(plain))
    grads = []
    for each in (made, plain):
        given = torch.linspace(-2, 2, 96).view(2, 48).requires_grad_()
        each(given).square().sum().backward()
        grads.append((given.grad, each.weight.grad))
    assert all(torch.equal(one, other) for one, other in zip(*grads, strict=True))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_compiled_and_traced_norms_compute_what_they_did():
    made, given = CompiledRMSNorm(norm()), torch.randn(2, 48)
    torch.testing.assert_close(torch.compile(made, backend="eager", fullgraph=True)(given), made(given))
    torch._dynamo.reset()
    # What the first row gives must not stand in the trace as a constant.
    torch.testing.assert_close(torch.jit.trace(made, torch.randn(1, 48))(given), made(given))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(made(given), norm()(given))


@torch.no_grad()
def test_weights_may_change_move_and_be_of_another_type():
    made, plain, given = CompiledRMSNorm(norm()), norm(), torch.randn(2, 48)
    changes = [
        lambda each: each.weight.mul_(2),
        lambda each: setattr(each, "weight", nn.Parameter(each.weight.flip(0))),
        lambda each: setattr(each, "variance_epsilon", 0.5),
        lambda each: each.bfloat16(),  # inputs in fp32 are the norm's own to do then
        lambda each: each.float(),
    ]
    for change in changes:
        for each in (made, plain):
            change(each)
        torch.testing.assert_close(made(given), plain(given))


@torch.no_grad()
@pytest.mark.parametrize(
    "change",
    [
        lambda norm: prune.l1_unstructured(norm, "weight", amount=0.3),
        lambda norm: parametrize.register_parametrization(norm, "weight", nn.Softplus()),
    ],
)
def test_pruned_and_parametrized_norms_are_the_models_own(change):
    made, plain, given = CompiledRMSNorm(norm()), norm(), torch.randn(2, 48)
    made(given)
    for each in (made, plain):
        change(each)
    torch.testing.assert_close(made(given), plain(given))


def test_without_the_library_norms_stay(monkeypatch):
    monkeypatch.setattr(native, "library", lambda: None)
    model = build("llama")
    normalize_in_one_pass(model)
    assert not replaced(model)


def test_loaded_models_have_such_norms_and_answer_as_before():
    model, plain = loaded()
    assert replaced(model)
    assert not replaced(plain)
    assert_same_answers(model, plain, ("adakv", "criticalkv"))
