"""Weights of few bits against their definitions in float64, and models made of them against dense ones."""

from __future__ import annotations

import copy
import shutil
import weakref
from itertools import product
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import prune

import winnow
from support.families import EVERY, LATENT, build, build_any, prompt
from support.many_rows import lost_by_rounding
from winnow.bundled import MODEL_PATH
from winnow.errors import ModelError
from winnow.kernels import native
from winnow.kernels.linear import multiplies_many, outruns_torch
from winnow.models import int4, load_model, open_model, open_skeleton, quantize_weights, quantized, weights, weights_of
from winnow.models.int4 import Int4Linear
from winnow.models.int8 import Int8Embedding, Int8Linear
from winnow.models.quantized_experts import QuantizedExperts
from winnow.models.room import Room
from winnow.models.weights import check_weights

pytestmark = pytest.mark.usefixtures("one_thread")
DTYPES = st.sampled_from([torch.float32, torch.bfloat16])
CPU = torch.device("cpu")


def linear(inputs: int, outputs: int, dtype: torch.dtype, bias: bool, seed: int) -> nn.Linear:
    """A layer whose weights have outputs of very different sizes, one of them nothing but zeros."""
    torch.manual_seed(seed)
    made = nn.Linear(inputs, outputs, bias)
    made.weight.data *= torch.logspace(-3, 2, outputs)[:, None]
    made.weight.data[0] = 0
    return made.to(dtype).requires_grad_(False)


def check_product(layer: nn.Module, rows: int, dtype: torch.dtype) -> None:
    """The layer multiplies by the weight that it tells, whichever way it goes."""
    # By Winnow's kernels where they are the faster ones, and as on other processors.
    for compiled, multiplies in product({outruns_torch(), False}, (True, False)):
        ours = patch.object(quantized, "outruns_torch", lambda compiled=compiled: compiled)
        library = patch.object(quantized, "torch_multiplies", lambda _, multiplies=multiplies: multiplies)
        with ours, library:
            inputs = torch.randn(rows, 1, layer.in_features).to(dtype)
            check_outputs(layer, inputs, lost_by_rounding(inputs, layer.weight, bits=8) if compiled else 0)


def check_outputs(layer: nn.Module, inputs: Tensor, lost: Tensor | int = 0) -> None:
    """They are those of the weight that the layer tells.

    lost: the most that they are off for rounded inputs.
    """
    with torch.no_grad():
        found = layer(inputs)
    dtype = inputs.dtype
    assert found.dtype == dtype
    weight = layer.weight.double()
    expected = inputs.double() @ weight.T + (0 if layer.bias is None else layer.bias.double())
    # What is summed, not the sum, bounds how far roundings take it; in bfloat16 the weight told is rounded, too.
    summed = inputs.double().abs() @ weight.abs().T + expected.abs()
    assert bool(((found.double() - expected).abs() <= 4 * torch.finfo(dtype).eps * summed + lost).all())


@given(
    st.integers(1, 150) | st.sampled_from([32, 64, 96]),
    st.integers(2, 150),
    st.integers(1, 40),
    DTYPES,
    st.booleans(),
    st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_8_bits(inputs, outputs, rows, dtype, bias, seed):
    plain = linear(inputs, outputs, dtype, bias, seed)
    layer = Int8Linear.of(plain)
    assert layer.levels.dtype == torch.int8
    assert (layer.levels.shape, layer.scales.shape) == ((outputs, inputs), (outputs,))
    for output in range(outputs):
        step = float(plain.weight[output].double().abs().max()) / 127
        told = layer.levels[output].double() * layer.scales[output].double()
        # Half a step; and where the scale was rounded down, what of the largest is cut off.
        rounded = 127 * step * torch.finfo(dtype).eps
        assert float((told - plain.weight[output].double()).abs().max()) <= step * 0.51 + rounded
    check_product(layer, rows, dtype)


@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 70), DTYPES, st.booleans(), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_4_bits(groups, blocks, rows, dtype, bias, seed):
    plain = linear(32 * groups, 64 * blocks, dtype, bias, seed)
    assert Int4Linear.fits(plain.weight.shape)
    layer = Int4Linear.of(plain)
    assert layer.packed.nbytes * 2 == plain.weight.numel()
    weight, told = plain.weight.double().unflatten(1, (-1, 32)), layer.weight.double().unflatten(1, (-1, 32))
    for output in range(64 * blocks):
        for group in range(groups):
            there = weight[output, group]
            step, size = float(there.max() - there.min()) / 15, float(there.abs().max())
            assert float((told[output, group] - there).abs().max()) <= 0.51 * step + 4 * size * torch.finfo(dtype).eps
            assert len(told[output, group].unique()) <= 16
    check_product(layer, rows, dtype)


@pytest.mark.parametrize("rows", [1, 50])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [Int8Linear, Int4Linear])
def test_gradients_of_inputs_are_those_of_the_weight_that_a_layer_tells(kind, dtype, rows):
    layer = kind.of(linear(96, 64, dtype, True, 0))
    inputs = torch.randn(rows, 96, dtype=dtype, requires_grad=True)
    layer(inputs).sum().backward()
    expected = layer.weight.float().sum(0).to(dtype).expand(rows, -1)
    torch.testing.assert_close(inputs.grad, expected, rtol=0.01, atol=0.01 * float(expected.abs().max()))


def test_parameters_have_the_order_by_which_files_know_a_model():
    plain = linear(32, 64, torch.bfloat16, True, 0)
    assert [name for name, _ in Int8Linear.of(plain).named_parameters()] == ["levels", "scales", "bias"]
    assert [name for name, _ in Int4Linear.of(plain).named_parameters()] == ["packed", "scales", "bias"]


@pytest.mark.parametrize("rows", [1, 200])
@pytest.mark.parametrize("kind", [Int8Linear, Int4Linear])
@pytest.mark.parametrize("trained", ["scales", "bias"])
def test_gradients_of_one_parameter_alone(kind, rows, trained, monkeypatch):
    monkeypatch.setattr(quantized, "outruns_torch", lambda: True)
    layer = kind.of(linear(96, 64, torch.bfloat16, True, 0))
    parameter = layer.get_parameter(trained).requires_grad_()
    inputs = torch.randn(rows, 96).bfloat16()
    layer(inputs)
    layer(inputs).sum().backward()
    (expected,) = torch.autograd.grad((inputs @ layer.weight.mT + layer.bias).sum(), parameter)
    torch.testing.assert_close(parameter.grad, expected, rtol=0.05, atol=0.05 * float(expected.abs().max()))


@pytest.mark.parametrize(("inputs", "outputs"), [(32, 64), (96, 320)])
def test_a_weight_of_4_bits_is_the_same_however_it_is_written_out(inputs, outputs):
    layer = Int4Linear.of(linear(inputs, outputs, torch.bfloat16, False, 0))
    rows = torch.randn(200, inputs).bfloat16()
    found = []
    for library in (native.library, lambda: None):
        with patch.object(native, "library", library):
            found.append((layer.weight, layer.written_out(slice(64, 64), torch.bfloat16), layer(rows)))
    *weights, outputs = zip(*found, strict=True)
    assert all(torch.equal(*each) for each in weights)
    if not multiplies_many(torch.bfloat16):
        assert torch.equal(*outputs)
    # Kernels for many rows do not round to bfloat16 first what levels stand for.
    taken = layer.written_out(slice(None), torch.bfloat16 if layer.fastest_plan(rows) is None else torch.float32)
    exact = rows.double() @ taken.double().mT
    allowed = lost_by_rounding(rows, taken, bits=4) + 0.004 * exact.abs() + 1e-4
    assert bool(((outputs[0].double() - exact).abs() <= allowed).all())


def test_levels_come_back_from_torchs_packing():
    levels = torch.randint(16, (192, 96), dtype=torch.int32)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels, 1)
    assert torch.equal(int4.unpacked(packed), levels.T.to(torch.int8))


@pytest.mark.parametrize("block", [32, 64])
def test_weights_are_packed_in_the_order_that_they_are_unpacked_in(block):
    levels = torch.randint(16, (128, 96), dtype=torch.uint8)
    packed = torch.empty(128, 48, dtype=torch.uint8)
    int4._pack(levels.clone(), packed, block)
    assert torch.equal(int4._unpacked(packed, block), levels.mT.to(torch.int8))


def test_weights_are_packed_as_torch_packs_them():
    levels = torch.randint(16, (192, 64), dtype=torch.uint8)
    packed = torch.empty(192, 32, dtype=torch.uint8)
    int4._pack(levels.clone(), packed, int4.block_size())
    assert torch.equal(packed, torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels.int(), 1))


@pytest.mark.parametrize("kind", [Int8Linear, Int4Linear])
def test_one_room_is_for_weights_of_any_size(kind):
    room, plain = Room(), [linear(inputs, 64, torch.bfloat16, False, inputs) for inputs in (96, 512, 32, 192)]
    for layer, found in [(each, kind.rounded(each.weight.detach(), room)) for each in plain]:
        assert torch.equal(found.weight, kind.of(layer).weight)


@pytest.mark.parametrize("kind", [Int8Linear, Int4Linear])
def test_a_weight_of_several_parts_is_rounded_as_in_one(kind, monkeypatch):
    weight = linear(96, 320, torch.bfloat16, False, 0).weight.detach()
    expected = kind.rounded(weight, Room())
    monkeypatch.setattr("winnow.models.int8.PASSING", 128 * 96)
    monkeypatch.setattr("winnow.models.int4.PASSING", 128 * 96)
    found = kind.rounded(weight, Room())
    assert all(torch.equal(one, other) for one, other in zip(found.parameters(), expected.parameters(), strict=True))


def test_an_unknown_order_of_packed_weights_is_refused(monkeypatch):
    monkeypatch.setattr(int4, "_BLOCKS", ())
    int4.block_size.cache_clear()
    with pytest.raises(ModelError, match="use int8"):
        check_weights("int4", open_model(MODEL_PATH), CPU, spread=False)
    int4.block_size.cache_clear()


@pytest.mark.parametrize("family", [*EVERY, *LATENT])
def test_models_of_every_family_compute_with_the_weights_that_they_tell(family):
    model = build_any(family)
    quantize_weights(model, "int4")
    plain = copy.deepcopy(model)
    for parent in list(plain.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, Int8Linear | Int4Linear):
                made = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None)
                made.weight.data.copy_(layer.weight)
                if layer.bias is not None:
                    made.bias.data.copy_(layer.bias)
                setattr(parent, name, made)
            if isinstance(layer, Int8Embedding):
                setattr(parent, name, nn.Embedding(*layer.weight.shape, _weight=layer.weight))
    ids = prompt(rows=2, length=9)
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, plain(ids).logits, atol=1e-5, rtol=1e-4)


def test_which_layers_get_how_many_bits():
    model = build_any("llama")
    quantize_weights(model, "int4")
    block = model.model.layers[0]
    assert type(block.self_attn.q_proj) is Int4Linear
    assert type(block.self_attn.k_proj) is Int8Linear  # 32 outputs do not fit
    assert type(model.lm_head) is Int8Linear
    assert type(model.model.embed_tokens) is Int8Embedding
    assert weights_of(model) == "int4"


def test_weights_are_let_go_of_layer_by_layer(monkeypatch):
    model, held = build("qwen3_moe"), []
    blocks = [weakref.ref(each) for each in model.modules() if hasattr(each, "is_concatenated")]

    class Watched(QuantizedExperts):
        def __init__(self, *given):
            held.append(sum(each() is not None for each in blocks))
            super().__init__(*given)

    monkeypatch.setattr(weights, "QuantizedExperts", Watched)
    quantize_weights(model, "int4")
    assert held == [*range(len(blocks), 0, -1)]
    assert len(held) > 1
    assert [each() for each in blocks] == [None] * len(blocks)


@pytest.mark.parametrize("tied", [True, False])
def test_an_embedding_has_8_bits_and_goes_on_sharing_the_output_layers(tied):
    model = build("llama", tie_word_embeddings=tied)
    before = model.model.embed_tokens.weight.detach().clone()
    quantize_weights(model, "int8")
    embedding = model.model.embed_tokens
    assert type(embedding) is Int8Embedding
    assert (embedding.levels is model.lm_head.levels) == tied
    ids = prompt(length=7)
    assert torch.equal(embedding(ids), embedding.weight[ids])
    torch.testing.assert_close(embedding.weight, before, atol=float(before.abs().max()) / 127, rtol=0)
    assert weights_of(model) == "int8"


class Adapted(nn.Module):
    """A stand-in for a tuner layer of PEFT."""

    def __init__(self, layer: nn.Linear, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in {"base_layer": layer, **parts}.items():
            self.add_module(name, part)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.base_layer(inputs)


@pytest.mark.parametrize("parts", [{}, {"lora_A": nn.ModuleDict({"default": nn.Linear(64, 32)})}])
def test_a_model_with_adapters_is_refused_and_stays(parts):
    model = build("llama")
    attention = model.model.layers[1].self_attn
    attention.q_proj = Adapted(attention.q_proj, **parts)
    with pytest.raises(ModelError, match=r"adapter \(model.layers.1.self_attn.q_proj\): merge the adapters first"):
        quantize_weights(model, "int8")
    assert weights_of(model) is None


def test_a_model_whose_weights_are_offloaded_is_refused():
    model = build("llama")
    model.model.layers[2].to("meta")
    with pytest.raises(ModelError, match=r"are not in memory \(model.layers.2.*without a device map"):
        quantize_weights(model, "int8")
    assert weights_of(model) is None


@torch.no_grad()
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_hooks_stay_on_layers_and_on_the_embedding(weights, tied):
    model, seen = build("llama", tie_word_embeddings=tied), []
    watched = (model.model.embed_tokens, model.model.layers[0].self_attn.q_proj, model.lm_head)
    handles = [each.register_forward_hook(lambda module, *_: seen.append(type(module))) for each in watched]
    quantize_weights(model, weights)
    assert not seen
    model(prompt(length=3))
    assert seen == [Int8Embedding, type(model.model.layers[0].self_attn.q_proj), Int8Linear]
    for each in handles:
        each.remove()
    model(prompt(length=3))
    assert len(seen) == len(watched)


def test_an_embedding_that_changes_its_rows_stays():
    model = build("llama", tie_word_embeddings=False)
    model.model.embed_tokens.max_norm = 1.0
    quantize_weights(model, "int8")
    assert type(model.model.embed_tokens) is nn.Embedding


@torch.no_grad()
def test_layers_that_others_compute_stay():
    model = build("llama", tie_word_embeddings=True)
    attention, embedding = model.model.layers[0].self_attn, model.model.embed_tokens
    attention.q_proj.forward = attention.q_proj.forward
    embedding.forward = embedding.forward
    prune.l1_unstructured(attention.v_proj, "weight", amount=0.3)
    quantize_weights(model, "int8")
    model(prompt(length=3))
    assert [type(each) for each in (attention.q_proj, attention.k_proj, attention.v_proj)] == [
        nn.Linear,
        Int8Linear,
        nn.Linear,
    ]
    assert model.model.embed_tokens is embedding


@torch.no_grad()
def test_a_pruned_bias_is_added(monkeypatch):
    monkeypatch.setattr(quantized, "outruns_torch", lambda: native.library() is not None)
    layer = Int8Linear.of(linear(96, 64, torch.bfloat16, True, 0))
    prune.l1_unstructured(layer, "bias", amount=0.3)
    check_outputs(layer, torch.randn(2, 96).bfloat16())


def test_a_model_is_loaded_with_few_bits():
    source = open_model(MODEL_PATH)
    plain, small = load_model(source, "cpu", "float32"), load_model(source, "cpu", weights="int4")
    assert small.dtype == torch.bfloat16 == open_skeleton(source, "cpu", weights="int4").dtype
    assert load_model(source, "cpu", "float32", weights="int8").dtype == torch.float32
    held, full = (sum(p.nbytes for p in model.parameters()) for model in (small, plain.bfloat16()))
    assert held < 0.6 * full
    ids = source.tokenizer("The favorite fruit of Alice is mango. " * 9, return_tensors="pt").input_ids
    with torch.no_grad():
        assert abs(float(small(ids, labels=ids).loss) - float(plain(ids, labels=ids).loss)) < 0.2
        # Many rows are multiplied by written-out weights, one by the packed ones.
        whole = small(ids).logits[:, -1]
        past = small(ids[:, :-1], use_cache=True).past_key_values
        last = small(ids[:, -1:], past_key_values=past, use_cache=True).logits[:, -1]
    assert (whole - last).abs().max() < 0.05 * whole.abs().max()


def test_what_cannot_be_is_told_before_weights_are_read(monkeypatch):
    monkeypatch.setattr("winnow.models.loading._loaded", lambda *_: pytest.fail("weights were read"))
    source = open_model(MODEL_PATH)
    with pytest.raises(ModelError, match="no weights 'int3'; use auto, int8, int4"):
        load_model(source, "cpu", weights="int3")
    with pytest.raises(ModelError, match="works on a single CPU"):
        load_model(source, device_map="auto", weights="int8")
    with pytest.raises(ModelError, match="works on a single CPU; use --device cpu"):
        check_weights("int8", source, torch.device("cuda"), spread=False)
    source.config.quantization_config = {"quant_method": "gptq"}
    with pytest.raises(ModelError, match=r"quantized already \(gptq\); leave --weights int8 out"):
        load_model(source, "cpu", weights="int8")


def test_commands_take_weights_and_contexts_remember_them(winnow_run, folder):
    report = str(MODEL_PATH / "document.txt")
    asked = ("--document", report, "--question", "What is the favorite fruit of Alice?", "--max-new-tokens", "4")
    code, out, err = winnow_run("run", *asked, "--weights", "int8", "--budget", "64")
    assert code == 0, err
    assert "bfloat16 with int8 weights on cpu" in out + err
    code, _, err = winnow_run("compress", report, "--out", "c.safetensors", "--weights", "int4", "--budget", "64")
    assert code == 0, err
    code, out, err = winnow_run("ask", "c.safetensors", "What is the favorite fruit of Alice?")
    assert code == 0, err
    assert "bfloat16 with int4 weights on cpu" in out + err
    code, _, err = winnow_run("run", *asked, "--weights", "int3")
    assert (code, "'int3'" in err) == (2, True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("weights")


def test_a_checkpoint_that_torchao_quantized_is_loaded_and_answers(tmp_path):
    torchao = pytest.importorskip("torchao.quantization")
    from transformers import AutoModelForCausalLM, TorchAoConfig

    config = TorchAoConfig(torchao.Int8WeightOnlyConfig())
    made = AutoModelForCausalLM.from_pretrained(MODEL_PATH, dtype=torch.bfloat16, quantization_config=config)
    made.save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL_PATH / name, tmp_path)
    source = open_model(tmp_path)
    model = load_model(source, "cpu")
    assert weights_of(model) == "torchao"
    text = (MODEL_PATH / "document.txt").read_text()
    answer = winnow.generate(model, source.tokenizer, text, "What is the favorite fruit of Alice?", method="criticalkv")
    assert answer.text.strip()
    with pytest.raises(ModelError, match=r"quantized already \(torchao\)"):
        load_model(source, "cpu", weights="int4")


def test_a_library_that_is_missing_is_named_with_its_extra(monkeypatch):
    source = open_model(MODEL_PATH)
    source.config.quantization_config = {"quant_method": "torchao"}
    monkeypatch.setattr("winnow.models.weights.find_spec", lambda _: None)
    with pytest.raises(ModelError, match=r"pip install 'winnow-kv\[quantized\]'"):
        load_model(source, "cpu")
    with pytest.raises(ModelError, match=r"pip install 'winnow-kv\[quantized\]'"):
        open_skeleton(source, "cpu")


def test_a_saved_model_of_few_bits_is_refused_and_not_read_wrongly(tmp_path):
    model = build("llama")
    quantize_weights(model, "int8")
    model.save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL_PATH / name, tmp_path)
    with pytest.raises(ModelError, match=r"has no weights for .* would be random"):
        load_model(open_model(tmp_path), "cpu")
