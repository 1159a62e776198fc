"""Rotary embeddings by the compiled kernel in models: which get it, and that models compute what they did."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import pytest
import torch
from torch import nn
from transformers import DynamicCache
from transformers.models.cohere.modeling_cohere import apply_rotary_pos_emb as alternating
from transformers.models.deepseek_v2.modeling_deepseek_v2 import apply_rotary_emb
from transformers.models.deepseek_v3.modeling_deepseek_v3 import apply_rotary_pos_emb_interleave
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import LlamaAttention, apply_rotary_pos_emb
from transformers.models.llama4.modeling_llama4 import apply_rotary_emb as of_other_places
from transformers.models.qwen3_next import modeling_qwen3_next

from support.families import EVERY, build, build_any, prompt
from support.instruction_sets import needs_native
from support.stand_ins import assert_files_know_the_model, assert_same_answers, assert_same_logits, loaded, used_copies
from winnow.kernels import native, rotary
from winnow.kernels.rotary import HALVES
from winnow.models import embed_in_one_pass
from winnow.models.rotary import RotaryByKernel, by_kernel

pytestmark = [pytest.mark.usefixtures("one_thread"), needs_native]


@pytest.fixture
def turns(monkeypatch) -> list[torch.Size]:
    """Shapes of the queries that the kernel turned."""
    seen: list[torch.Size] = []
    turn = rotary.turn

    def watched(queries, *others):
        seen.append(queries.shape)
        return turn(queries, *others)

    monkeypatch.setattr(rotary, "turn", watched)
    return seen


def embedding(model: nn.Module) -> list[nn.Module]:
    return [each for each in model.modules() if hasattr(type(each), "_own_class")]


def test_functions_are_told_by_what_they_compute():
    def rounded_once(q, k, cos, sin):
        found = apply_rotary_pos_emb(q.float(), k.float(), cos.float(), sin.float())
        return tuple(each.to(q.dtype) for each in found)

    def of_one(q, k, cos, sin):
        return apply_rotary_pos_emb(q, k, cos, sin)[0]

    def of_second_angles(q, k, cos, sin):
        return apply_rotary_pos_emb_interleave(q, k, cos.roll(cos.shape[-1] // 2, -1), sin.roll(sin.shape[-1] // 2, -1))

    def of_other_angles(q, k, cos, sin):
        return apply_rotary_pos_emb(q, k, *cos.unbind(5), sin)

    def other_arguments(x, cos, sin, k):
        raise AssertionError("it is not called")

    assert by_kernel(apply_rotary_pos_emb)
    assert by_kernel(modeling_gpt_oss.apply_rotary_pos_emb)
    assert by_kernel(apply_rotary_pos_emb_interleave)
    assert by_kernel(apply_rotary_emb)
    for other in (
        of_other_places,
        alternating,
        rounded_once,
        of_one,
        of_second_angles,
        of_other_angles,
        other_arguments,
    ):
        assert not by_kernel(other)


@torch.no_grad()
def test_channels_without_angles_stay_where_the_models_own_leaves_them(turns):
    """Qwen3-Next's does, and Llama's does not know any."""
    torch.manual_seed(0)
    queries, keys, cos, sin = torch.randn(2, 3, 5, 20), torch.randn(2, 1, 5, 20), *torch.randn(2, 2, 5, 8)
    kernel = by_kernel(modeling_qwen3_next.apply_rotary_pos_emb)
    turns.clear()
    expected = modeling_qwen3_next.apply_rotary_pos_emb(queries, keys, cos, sin)
    for found, own in zip(kernel(queries, keys, cos, sin), expected, strict=True):
        torch.testing.assert_close(found, own)
    assert len(turns) == 1
    with pytest.raises(RuntimeError, match="must match the size"):
        by_kernel(apply_rotary_pos_emb)(queries, keys, cos, sin)


def test_a_function_gets_as_many_angles_as_it_takes(turns):
    """With others, even by a caller's mistake, it does what it did."""
    torch.manual_seed(0)
    queries, keys = torch.randn(2, 3, 5, 8), torch.randn(2, 1, 5, 8)
    for own, angles, wrong in ((apply_rotary_pos_emb, 8, 4), (modeling_gpt_oss.apply_rotary_pos_emb, 4, 8)):
        kernel = by_kernel(own)
        assert kernel is not None
        turns.clear()
        cos, sin = torch.randn(2, 2, 5, angles)
        for found, expected in zip(kernel(queries, keys, cos, sin), own(queries, keys, cos, sin), strict=True):
            torch.testing.assert_close(found, expected)
        assert len(turns) == 1
        with pytest.raises(RuntimeError, match="must match the size"):
            kernel(queries, keys, *torch.randn(2, 2, 5, wrong))
        assert len(turns) == 1


@pytest.mark.parametrize("name", EVERY)
def test_models_compute_what_they_did(name, turns):
    model = build_any(name)
    plain = copy.deepcopy(model)
    embed_in_one_pass(model)
    turns.clear()
    assert_same_logits(model, plain)
    if name in ("llama", "qwen2", "qwen3", "mistral", "phi3", "granite", "gpt_oss"):
        assert len(embedding(model)) == model.config.num_hidden_layers == len(turns)
    assert not embedding(plain)


@torch.no_grad()
@pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v3", "glm4_moe_lite", "youtu", "longcat_flash"])
def test_models_with_latents_compute_what_they_did(name, turns):
    model = build(name)
    plain = copy.deepcopy(model)
    embed_in_one_pass(model)
    turns.clear()
    assert_same_logits(model, plain)
    layers = [each for each in model.modules() if hasattr(each, "kv_b_proj")]
    assert embedding(model) == layers
    assert len(turns) == len(layers) > 0
    ids = prompt(2, 9)
    assert torch.equal(model.bfloat16()(ids).logits, plain.bfloat16()(ids).logits)
    assert len(turns) == 2 * len(layers)


def test_models_that_do_not_turn_neighbors_have_the_kernel_for_halves(turns):
    model = build("deepseek_v3", rope_interleave=False)
    plain = copy.deepcopy(model)
    embed_in_one_pass(model)
    turns.clear()
    assert_same_logits(model, plain)
    assert len(turns) == model.config.num_hidden_layers


@torch.no_grad()
def test_parts_of_projections_are_turned_where_they_lie(turns):
    """Heads' last channels, and those behind a latent."""
    torch.manual_seed(0)
    queries = torch.randn(2, 5, 4, 192).bfloat16().transpose(1, 2)[..., 128:]
    keys = torch.randn(2, 5, 576).bfloat16()[..., 512:].view(2, 1, 5, 64)
    given = (queries, keys, *torch.randn(2, 2, 5, 64).bfloat16())
    kernel = by_kernel(apply_rotary_pos_emb_interleave)
    turns.clear()
    for found, expected in zip(kernel(*given), apply_rotary_pos_emb_interleave(*given), strict=True):
        assert torch.equal(found, expected)
    assert turns == [queries.shape]


@pytest.mark.parametrize("gradients", [False, True])
def test_queries_without_keys_are_the_models_own_to_turn(gradients, turns):
    """Layers that share others' keys give none (Mistral Large 4)."""
    mistral = pytest.importorskip("transformers.models.mistral_large4.modeling_mistral_large4")
    kernel = by_kernel(mistral.apply_rotary_pos_emb_interleave)
    queries, (cos, sin) = torch.randn(1, 4, 5, 16), torch.randn(2, 1, 5, 16)
    turns.clear()
    with torch.set_grad_enabled(gradients):
        found, keys = kernel(queries, None, cos, sin)
    expected, _ = mistral.apply_rotary_pos_emb_interleave(queries, None, cos, sin)
    assert torch.equal(found, expected)
    assert keys is None
    assert not turns


def test_only_the_layers_of_the_model_are_others():
    model, other = build("llama"), build("llama")
    embed_in_one_pass(model)
    layer = model.model.layers[0].self_attn
    assert isinstance(layer, LlamaAttention)
    assert type(layer) is not LlamaAttention
    assert type(layer).__name__ == "LlamaAttention"
    assert type(other.model.layers[0].self_attn) is LlamaAttention
    assert modeling_llama.apply_rotary_pos_emb is apply_rotary_pos_emb
    assert repr(model) == repr(other)
    kind = type(layer)
    embed_in_one_pass(model)
    assert type(layer) is kind


def test_layers_with_a_forward_of_their_own_stay():
    model = build("llama")
    wrapped = model.model.layers[1].self_attn
    wrapped.forward = wrapped.forward
    embed_in_one_pass(model)
    assert [len(embedding(each)) for each in model.model.layers] == [1, 0, 1]


def test_a_forward_that_somebody_puts_into_the_class_counts(monkeypatch, turns):
    model = build("llama")
    plain = copy.deepcopy(model)
    embed_in_one_pass(model)
    forward = LlamaAttention.forward
    with monkeypatch.context() as patched:
        patched.setattr(LlamaAttention, "forward", lambda *given, **named: (0 * forward(*given, **named)[0], None))
        turns.clear()
        for each in (model, copy.deepcopy(plain)):
            embed_in_one_pass(each)
            assert_same_logits(each, plain)
        assert not turns
    for each in (model, copy.deepcopy(plain)):
        embed_in_one_pass(each)
        turns.clear()
        assert_same_logits(each, plain)
        assert len(turns) == 3


@torch.no_grad()
def test_functions_that_somebody_puts_into_the_module_count(monkeypatch, turns):
    model = build("llama")
    plain = copy.deepcopy(model)
    embed_in_one_pass(model)
    for each in (model, plain):
        each.set_attn_implementation("eager")
    attend = modeling_llama.eager_attention_forward
    with monkeypatch.context() as patched:
        patched.setattr(modeling_llama, "eager_attention_forward", lambda *a, **b: (0 * attend(*a, **b)[0], None))
        turns.clear()
        assert_same_logits(model, plain)
        assert len(turns) == 3
        patched.setattr(modeling_llama, "apply_rotary_pos_emb", lambda q, k, cos, sin: (q, k))
        assert_same_logits(model, plain)
        assert len(turns) == 3
    assert_same_logits(model, plain)
    assert len(turns) == 6


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")
def test_a_cache_by_its_earlier_name_is_filled():
    model = build("llama")
    layers = [model.model.layers[0].self_attn, copy.deepcopy(model.model.layers[0].self_attn)]
    embed_in_one_pass(model)
    hidden = torch.randn(1, 5, model.config.hidden_size)
    angles, outputs = model.model.rotary_emb(hidden, torch.arange(5)[None]), []
    for layer in layers:
        cache = DynamicCache()
        given = {"position_embeddings": angles, "attention_mask": None, "past_key_values": cache}
        outputs.append(layer(hidden, **given)[0])
        assert cache.get_seq_length() == 5
    torch.testing.assert_close(*outputs)


def test_what_the_kernel_does_not_read_is_the_models_own_to_do(turns):
    embed = RotaryByKernel(apply_rotary_pos_emb, HALVES)
    queries, keys = torch.randn(1, 4, 5, 16), torch.randn(1, 2, 5, 16)
    cos, sin = torch.randn(2, 1, 5, 16)
    embed(queries, keys, cos, sin)
    assert len(turns) == 1
    found = embed(queries.double(), keys.double(), cos.double(), sin.double())
    assert found[0].dtype == torch.float64
    found = embed(queries.mT.contiguous().mT, keys, cos, sin, unsqueeze_dim=1)
    torch.testing.assert_close(found, apply_rotary_pos_emb(queries, keys, cos, sin))
    grown = queries.clone().requires_grad_()
    embed(grown, keys, cos, sin)[0].sum().backward()
    assert grown.grad is not None
    assert len(turns) == 1


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_trace_has_the_models_own():
    given = (torch.randn(1, 4, 5, 16), torch.randn(1, 2, 5, 16), *torch.randn(2, 1, 5, 16))
    traced = torch.jit.trace(RotaryByKernel(apply_rotary_pos_emb, HALVES).__call__, given)
    # What the first tensors give must not stand in the trace as a constant.
    others = (torch.randn(1, 4, 3, 16), torch.randn(1, 2, 3, 16), *torch.randn(2, 1, 3, 16))
    for found, expected in zip(traced(*others), apply_rotary_pos_emb(*others), strict=True):
        torch.testing.assert_close(found, expected)


@torch.no_grad()
def test_compiled_models_compute_what_they_did(turns):
    model = build("llama")
    plain = copy.deepcopy(model)
    embed_in_one_pass(model)
    turns.clear()
    ids = prompt(1, 9)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(ids, use_cache=False).logits, plain(ids).logits)
    torch._dynamo.reset()
    assert not turns


def test_files_know_the_model_and_copies_have_the_kernel(tmp_path):
    model = build("llama")
    plain = copy.deepcopy(model)
    embed_in_one_pass(model)
    for each in used_copies(model):
        assert len(embedding(each)) == len(embedding(model)) == 3
        assert isinstance(each.model.layers[0].self_attn, LlamaAttention)
    assert_files_know_the_model(model, plain, tmp_path)
    assert not embedding(type(plain).from_pretrained(tmp_path))


def test_pickles_are_read_where_there_is_no_library(monkeypatch):
    model = build("llama")
    embed_in_one_pass(model)
    pickled = pickle.dumps(model)
    monkeypatch.setattr(native, "library", lambda: None)
    read = pickle.loads(pickled)
    assert not embedding(read)
    assert type(read.model.layers[0].self_attn) is LlamaAttention


def test_a_model_goes_with_its_last_reference():
    model = build("llama")
    embed_in_one_pass(model)
    layer = weakref.ref(model.model.layers[0].self_attn)
    gc.disable()
    try:
        del model
        assert layer() is None
    finally:
        gc.enable()


def test_without_the_library_layers_stay(monkeypatch):
    monkeypatch.setattr(native, "library", lambda: None)
    model = build("llama")
    embed_in_one_pass(model)
    assert not embedding(model)


def test_loaded_models_have_it_and_answer_as_before(turns):
    model, plain = loaded()
    turns.clear()
    assert_same_answers(model, plain)
    assert turns
    with torch.no_grad():
        model.set_attn_implementation("eager")
        outputs = model(prompt(1, 7), output_attentions=True)
    assert len(outputs.attentions) == model.config.num_hidden_layers
