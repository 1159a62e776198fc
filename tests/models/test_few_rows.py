"""Linear layers with ways of their own for few rows: against float64, and in models against torch's own layers."""

from __future__ import annotations

import copy
import gc
import weakref
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrize, prune

from support.families import EVERY, LATENT, build, build_any, prompt
from support.instruction_sets import available, needs_native
from support.many_rows import lost_by_rounding
from support.stand_ins import assert_files_know_the_model, assert_same_answers, loaded, used_copies
from winnow.bundled import MODEL_PATH
from winnow.cache.projection import output_projection
from winnow.kernels import native
from winnow.kernels.linear import multiplies_many
from winnow.kernels.onednn import has_onednn
from winnow.models import (
    compiled,
    dtypes,
    few_rows,
    load_model,
    open_model,
    parts,
    quantize_weights,
    read_weights_directly,
    weights_of,
)
from winnow.models.compiled import CompiledLinear
from winnow.models.dtypes import torch_multiplies
from winnow.models.few_rows import layers_of_this_processor
from winnow.models.int8 import Int8Linear
from winnow.models.transposed import FEW, TransposedLinear

pytestmark = pytest.mark.usefixtures("one_thread")
KINDS = [TransposedLinear, pytest.param(CompiledLinear, marks=needs_native)]
SHAPES = st.lists(st.integers(0, 5), max_size=2).map(tuple) | st.integers(FEW - 2, FEW + 2).map(lambda rows: (rows,))


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def kind(request, monkeypatch):
    """Layers that loading takes for the fastest here."""
    monkeypatch.setattr(few_rows, "layers_of_this_processor", lambda: request.param)
    return request.param


def made_directly(model):
    """The model with layers that read directly, and a copy of it with torch's own."""
    plain = copy.deepcopy(model)
    read_weights_directly(model)
    return model, plain


@pytest.mark.parametrize("kind", KINDS)
@given(st.integers(2, 150), st.integers(1, 150), SHAPES, st.booleans(), st.booleans(), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_products_of_any_shape(kind, inputs, outputs, shape, bias, turned, seed):
    torch.manual_seed(seed)
    plain = nn.Linear(inputs, outputs, bias).bfloat16().requires_grad_(False)
    layer = kind.of(plain)
    given = torch.randn(*shape, inputs).bfloat16()
    if turned and len(shape) == 2:
        given = given.transpose(0, 1)
    found = layer(given)
    assert (found.shape, found.dtype) == ((*given.shape[:-1], outputs), torch.bfloat16)
    assert found.is_contiguous()
    many = kind is CompiledLinear and given.numel() > kind.few(torch.bfloat16) * inputs
    if many and torch_multiplies(given.dtype) and not multiplies_many(given.dtype):
        # Of two inputs torch rounds the product before it adds the bias, too.
        assert torch.equal(found, plain(given))
        return
    weight = plain.weight.double()
    added = plain.bias.double() if bias else torch.zeros(outputs).double()
    exact, summed = given.double() @ weight.T + added, given.double().abs() @ weight.abs().T + added.abs()
    # Rounded once to bfloat16, after a sum in float32.
    allowed = torch.finfo(torch.bfloat16).eps * exact.abs() + 1e-5 * summed
    if many:
        allowed += lost_by_rounding(given, plain.weight)
    assert bool(((found.double() - exact).abs() <= allowed).all())


def test_the_weight_is_on_the_left_for_few_rows_and_not_for_many(monkeypatch):
    layer = TransposedLinear.of(nn.Linear(64, 96).bfloat16())
    monkeypatch.setattr(nn.Linear, "forward", lambda *_: pytest.fail("the weight was copied"))
    for rows in (1, 2, FEW):
        layer(torch.randn(rows, 64).bfloat16())
    monkeypatch.undo()
    monkeypatch.setattr(torch, "addmm", lambda *_: pytest.fail("the prompt was turned around"))
    layer(torch.randn(FEW + 1, 64).bfloat16())


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_kernels_multiply_few_rows_and_torch_many(dtype, monkeypatch):
    layer = CompiledLinear.of(nn.Linear(64, 96).to(dtype).requires_grad_(False))
    most = layer.few(dtype)
    monkeypatch.setattr(nn.Linear, "forward", lambda *_: pytest.fail("torch multiplied"))
    monkeypatch.setattr(compiled, "linear", lambda *_: pytest.fail("torch multiplied"))
    for rows in (1, 2, most):
        layer(torch.randn(rows, 64, dtype=dtype))
    monkeypatch.setattr(compiled, "has_onednn", lambda: False)
    monkeypatch.setattr(compiled, "torch_multiplies", lambda _: True)
    if multiplies_many(dtype):
        layer(torch.randn(most + 1, 64, dtype=dtype))
    monkeypatch.setattr(compiled, "multiplies_many", lambda _: False)
    with pytest.raises(pytest.fail.Exception, match="torch"):
        layer(torch.randn(most + 1, 64, dtype=dtype))


@needs_native
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(7, 9), (1, 33), (2, 3, 11)])
@pytest.mark.parametrize("bias", [True, False])
def test_many_rows_that_torch_has_no_library_for_are_multiplied_in_float32(dtype, shape, bias, monkeypatch):
    monkeypatch.setattr(compiled, "torch_multiplies", lambda _: False)
    monkeypatch.setattr(compiled, "multiplies_many", lambda _: False)
    monkeypatch.setattr(parts, "MULTIPLIED", 64 * 128)  # a weight of several parts, the last one shorter
    plain = nn.Linear(128, 200, bias).to(dtype).requires_grad_(False)
    layer, given = CompiledLinear.of(plain), torch.randn(*shape, 128, dtype=dtype)
    with patch.object(compiled, "linear", lambda *_: pytest.fail("torch multiplied")):
        found = layer(given)
    exact = nn.functional.linear(given.double(), plain.weight.double(), plain.bias.double() if bias else None)
    assert found.dtype == dtype
    assert found.shape == (*shape, 200)
    torch.testing.assert_close(found, exact.to(dtype), rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


@needs_native
def test_many_rows_with_gradients_are_torchs(monkeypatch):
    monkeypatch.setattr(compiled, "torch_multiplies", lambda _: False)
    layer = CompiledLinear.of(nn.Linear(8, 6).bfloat16())
    layer(torch.randn(40, 8).bfloat16()).sum().backward()
    assert layer.weight.grad is not None


def test_torch_has_libraries_for_products_of_float32():
    assert torch_multiplies(torch.float32)
    assert torch_multiplies(torch.float64)


@needs_native
@pytest.mark.skipif(not has_onednn(), reason="torch was built without oneDNN")
@given(st.integers(2, 90), st.integers(1, 90), st.booleans(), st.booleans(), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_many_rows_in_float32_are_onednns(inputs, outputs, bias, turned, seed):
    torch.manual_seed(seed)
    plain = nn.Linear(inputs, outputs, bias).requires_grad_(False)
    layer = CompiledLinear.of(plain)
    given = torch.randn(7, 9, inputs)
    if turned:
        given = given.transpose(0, 1)
    unseen = patch.object(nn.Linear, "forward", lambda *_: pytest.fail("torch multiplied"))
    with patch.object(native, "is_zen", lambda: True), unseen:
        found = layer(given)
    torch.testing.assert_close(found, plain(given), rtol=1e-5, atol=1e-5)
    assert found.shape == (*given.shape[:-1], outputs)


@pytest.mark.parametrize("kind", KINDS)
def test_other_dtypes_devices_and_tensors_of_libraries_are_torchs_own(kind):
    plain = nn.Linear(8, 6).double()
    layer = kind.of(plain)
    inputs = torch.randn(1, 8).double()
    assert torch.equal(layer(inputs), plain(inputs))
    assert layer.to("meta", torch.bfloat16)(inputs.to("meta", torch.bfloat16)).shape == (1, 6)
    with pytest.raises(RuntimeError, match="dtype"):
        kind.of(nn.Linear(8, 6))(inputs.bfloat16())
    plain = nn.Linear(8, 6)
    for each in (inputs.bfloat16(), inputs.float()):
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            assert torch.equal(kind.of(plain)(each), plain(each))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_torchs_layer(kind, rows, bias):
    plain = nn.Linear(40, 24, bias).bfloat16()
    layer = kind.of(copy.deepcopy(plain))
    inputs, there = torch.randn(rows, 40).bfloat16().requires_grad_(), torch.randn(rows, 24).bfloat16()
    found = torch.autograd.grad(layer(inputs), [inputs, *layer.parameters()], there)
    expected = torch.autograd.grad(plain(inputs), [inputs, *plain.parameters()], there)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=0.03, rtol=0.02)


@pytest.mark.parametrize("family", [*EVERY, *LATENT])
def test_models_of_every_family_compute_what_they_did(family, kind):
    model, plain = made_directly(build_any(family).bfloat16())
    assert any(type(layer) is kind for layer in model.modules()) == any(
        type(layer) is nn.Linear for layer in plain.modules()
    )
    exact = copy.deepcopy(plain).float()
    ids = prompt(rows=2, length=9)
    with torch.no_grad():
        expected = exact(ids).logits
        errors = [float((each(ids).logits.float() - expected).norm()) for each in (model, plain)]
    assert errors[0] <= 1.5 * errors[1] + 1e-3


def test_which_models_get_such_layers(monkeypatch):
    def layers(kind, dtype):
        monkeypatch.setattr(few_rows, "layers_of_this_processor", lambda: kind)
        return type(load_model(open_model(MODEL_PATH), "cpu", dtype).lm_head)

    assert layers(TransposedLinear, "bfloat16") is TransposedLinear
    assert layers(TransposedLinear, "float32") is nn.Linear
    assert {layers(CompiledLinear, dtype) for dtype in ("bfloat16", "float32", "float16")} == {CompiledLinear}
    assert layers(None, "bfloat16") is nn.Linear


@needs_native
def test_which_processors_have_such_layers(monkeypatch):
    used = native.isa()
    for tiles, without in ((True, TransposedLinear), (False, None)):
        monkeypatch.setattr(few_rows, "cpu_has_tiles", lambda tiles=tiles: tiles)
        for isa in available():
            native.select_isa(isa)
            assert layers_of_this_processor() is (without if isa == "portable" else CompiledLinear)
        native.select_isa(used)
    monkeypatch.setattr(native, "library", lambda: None)
    assert layers_of_this_processor() is None


def test_a_layer_of_one_input_stays_torchs(kind):
    model = nn.Sequential(nn.Linear(1, 4), nn.Linear(4, 1)).bfloat16()
    read_weights_directly(model)
    assert [type(layer) for layer in model] == [nn.Linear, kind]


def test_tiles_are_those_that_torch_knows_of(monkeypatch):
    for told, expected in (({"amx_bf16": True}, True), ({"avx512_bf16": True}, False), ({}, False)):
        dtypes.cpu_has_tiles.cache_clear()
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda told=told: told, raising=False)
        assert dtypes.cpu_has_tiles() is expected
    dtypes.cpu_has_tiles.cache_clear()


def test_files_know_the_model_and_it_remains_one_with_plain_weights(kind, tmp_path):
    model, plain = made_directly(build("llama", tie_word_embeddings=True).bfloat16())
    assert weights_of(model) is None
    assert model.lm_head.weight is model.model.embed_tokens.weight
    for each in used_copies(model):
        assert type(each.lm_head) is kind
        assert each.lm_head.weight is each.model.embed_tokens.weight
    assert_files_know_the_model(model, plain, tmp_path)


def test_projections_are_read_as_before(kind):
    model, plain = made_directly(build("qwen2").bfloat16())
    found, expected = (output_projection(each.model.layers[0].self_attn, 4, 16) for each in (model, plain))
    assert torch.equal(found, expected)


def test_such_layers_are_quantized_as_others(kind):
    model, plain = made_directly(build("llama").bfloat16())
    for each in (model, plain):
        quantize_weights(each, "int8")
    assert type(model.lm_head) is Int8Linear
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, FEW + 1])
def test_gradients_of_a_bias_alone(kind, rows):
    layer = kind.of(nn.Linear(32, 24).bfloat16().requires_grad_(False))
    layer.bias.requires_grad_()
    layer(torch.randn(rows, 32).bfloat16()).sum().backward()
    assert layer.bias.grad.tolist() == [rows] * 24


def test_answers_are_those_of_torchs_layers(kind):
    assert_same_answers(*loaded("bfloat16"), ("adakv", "criticalkv"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_compiled_layer_computes_what_it_did(kind):
    layer = kind.of(nn.Linear(32, 24).bfloat16().requires_grad_(False))
    made = torch.compile(layer, backend="eager", fullgraph=True)
    for shape in ((1, 1), (2, 3), (1, FEW + 1)):
        given = torch.randn(*shape, 32).bfloat16()
        torch.testing.assert_close(made(given), layer(given), rtol=0.016, atol=1e-3)
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_a_traced_layer_computes_what_it_did(kind):
    layer = kind.of(nn.Linear(32, 24).requires_grad_(False))
    traced = torch.jit.trace(layer, torch.randn(1, 32))
    given = torch.randn(1, 32)
    torch.testing.assert_close(traced(given), layer(given))


@needs_native
@torch.no_grad()
def test_weights_may_change_move_and_go():
    plain = nn.Linear(64, 96).requires_grad_(False)
    layer, given = CompiledLinear.of(copy.deepcopy(plain)), torch.randn(1, 64)
    changes = {
        "in place": lambda each: each.weight.mul_(2),
        "another weight": lambda each: setattr(each, "weight", nn.Parameter(each.weight.flip(0))),
        "another bias": lambda each: setattr(each, "bias", nn.Parameter(each.bias + 1)),
        "no bias": lambda each: setattr(each, "bias", None),
        "fewer outputs of the same memory": lambda each: setattr(each.weight, "data", each.weight.data[:64]),
        "turned in the same memory": lambda each: setattr(each.weight, "data", each.weight.data.mT),
        "turned": lambda each: setattr(each, "weight", nn.Parameter(each.weight.mT.contiguous().mT)),
        "another type and back": lambda each: each.bfloat16().float(),
    }
    torch.testing.assert_close(layer(given), plain(given))
    for change in changes.values():
        for each in (layer, plain):
            change(each)
        torch.testing.assert_close(layer(given), plain(given))


@torch.no_grad()
def test_hooks_stay_and_their_handles_remove_them(kind):
    model, seen = nn.Sequential(nn.Linear(8, 6)).bfloat16(), []
    inputs = torch.randn(1, 8).bfloat16()
    handles = [
        model[0].register_forward_hook(lambda *_, **named: seen.append(sorted(named)), with_kwargs=True),
        model[0].register_forward_pre_hook(lambda *_: seen.append("before")),
    ]
    model(inputs)
    expected = seen.copy()
    read_weights_directly(model)
    assert type(model[0]) is kind
    assert seen == expected
    model(inputs)
    assert seen == 2 * expected
    for each in handles:
        each.remove()
    model(inputs)
    assert len(seen) == 2 * len(expected)


def test_layers_with_a_forward_of_their_own_stay(kind):
    model, inputs = nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 8)).bfloat16(), torch.randn(1, 8).bfloat16()
    forward = model[0].forward
    model[0].forward = lambda given: forward(given) + 1
    expected = model(inputs)
    read_weights_directly(model)
    assert [type(each) for each in model] == [nn.Linear, kind]
    torch.testing.assert_close(model(inputs), expected)


def test_layers_with_hooks_of_accelerate_stay(kind):
    hooks = pytest.importorskip("accelerate.hooks")
    model = nn.Sequential(nn.Linear(8, 6)).bfloat16()
    hooks.add_hook_to_module(model[0], hooks.ModelHook())
    read_weights_directly(model)
    assert hasattr(model[0], "_hf_hook")


CHANGES = {
    "pruned": lambda layer: prune.l1_unstructured(layer, "weight", amount=0.3),
    "a pruned bias": lambda layer: prune.l1_unstructured(layer, "bias", amount=0.3),
    "weight norm": nn.utils.parametrizations.weight_norm,
    "parametrized": lambda layer: parametrize.register_parametrization(layer, "weight", nn.Softplus()),
}


@torch.no_grad()
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("kind", KINDS)
def test_pruned_and_parametrized_layers_are_torchs_own(kind, change):
    plain, given = nn.Linear(64, 96), torch.randn(1, 64)
    layer = kind.of(copy.deepcopy(plain))
    layer(given)
    for each in (layer, plain):
        change(each)
    torch.testing.assert_close(layer(given), plain(given))


@needs_native
@torch.no_grad()
def test_memory_that_a_weight_has_left_is_given_back():
    layer = CompiledLinear.of(nn.Linear(64, 96))
    layer(torch.randn(1, 64))
    left = weakref.ref(layer.weight.untyped_storage())
    layer.to("meta")
    layer(torch.randn(1, 64, device="meta"))
    gc.collect()
    assert left() is None
