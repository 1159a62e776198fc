"""Tiny GGUF files: a Qwen2 of a few thousand parameters with a tokenizer of bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from support.families import sharpen

START, END, TEXT_END = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
TOKENS = [*sorted(ByteLevel.alphabet()), "he", "th", START, END, TEXT_END]
MERGES = ["h e", "t h"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LAYERS, HEADS, KV_HEADS, HIDDEN, INNER, CONTEXT = 2, 4, 2, 64, 96, 512
_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def tiny_model(context: int = CONTEXT) -> PreTrainedModel:
    """The model of the file, as it is before its weights are quantized; context: tokens that it reads, at most."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(TOKENS),
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=context,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        eos_token_id=None,
        bos_token_id=None,
    )
    return sharpen(Qwen2ForCausalLM(config))


def in_eight_bits(name: str) -> str:
    """The kind of blocks of every matrix, if the file has no others."""
    return "Q8_0"


def write_gguf(path: Path, model: PreTrainedModel, kind: Callable[[str], str] = in_eight_bits, **facts: Any) -> Path:
    """A file with a model, its matrices in blocks; `model` then has the weights that the file holds.

    kind: of a matrix's blocks, by its name in the file. facts: "architecture", "eos" (a token of the file) and
    "template" where they are not as usual.
    """
    import gguf

    writer = gguf.GGUFWriter(path, facts.get("architecture", "qwen2"))
    writer.add_block_count(LAYERS)
    writer.add_context_length(model.config.max_position_embeddings)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(model.config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([1] * (len(TOKENS) - 3) + [3] * 3)
    writer.add_token_merges(MERGES)
    writer.add_eos_token_id(TOKENS.index(facts.get("eos", END)))
    if template := facts.get("template", TEMPLATE):
        writer.add_chat_template(template)
    for name, parameter in model.named_parameters():
        told = _gguf_name(name)
        numbers = parameter.detach().numpy()
        parameter.data.copy_(torch.from_numpy(_add(writer, told, numbers, kind(told) if numbers.ndim > 1 else "F32")))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_weights(path: Path, model: PreTrainedModel, architecture: str, kind: Callable[[str], str]) -> Path:
    """A file with nothing but random weights of a model's shapes, under the names of an architecture."""
    import gguf
    from transformers import modeling_gguf_pytorch_utils as unpacking

    writer = gguf.GGUFWriter(path, architecture)
    config = model.config
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_embedding_length(config.hidden_size)
    writer.add_vocab_size(config.vocab_size)
    processor = unpacking.TENSOR_PROCESSORS.get(architecture, unpacking.TensorProcessor)(config=config.to_dict())
    names = unpacking.get_gguf_hf_weights_map(model, processor)
    shapes = {name: tuple(each.shape) for name, each in model.state_dict().items()}
    chance = np.random.default_rng(0)
    for told, name in names.items():
        if name not in shapes:
            continue
        shape, numbered = shapes[name], told
        if "ffn_gate_inp_shexp" in told:  # one row, which files have as a vector
            shape = shape[1:]
        if "_exps" in told:  # of experts, whose first two matrices are one in the model
            experts, outputs, inputs = shape
            shape = (experts, outputs if "down" in told else outputs // 2, inputs)
            numbered = told if told.endswith(".weight") else f"{told}.weight"
        numbers = chance.standard_normal(shape, np.float32)
        _add(writer, numbered, numbers, kind(told) if len(shape) > 1 else "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: Any, name: str, numbers: np.ndarray, kind: str) -> np.ndarray:
    """Adds a tensor in blocks of a kind to a file, and returns what they stand for."""
    import gguf

    blocks = gguf.GGMLQuantizationType[kind]
    packed = gguf.quants.quantize(numbers, blocks)
    writer.add_tensor(name, packed, raw_dtype=blocks)
    return np.array(gguf.quants.dequantize(packed, blocks))


def _gguf_name(name: str) -> str:
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem, _, kind = name.rpartition(".")
    if stem in whole:
        return f"{whole[stem]}.{kind}"
    layer, _, part = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{_NAMES[part]}.{kind}"
