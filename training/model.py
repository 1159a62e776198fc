"""Architecture and tokenizer of the bundled model."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from winnow.tasks import vocabulary as v

QUERY_HEADS, KV_HEADS, HEAD_DIM = 8, 4, 32
GROUP = QUERY_HEADS // KV_HEADS
EMBEDDING_SCALE = 0.088
MAX_POSITIONS = 2048
TOKEN_IDS: dict[str, int] = {word: index for index, word in enumerate(v.VOCABULARY)}


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A word-level tokenizer that ignores case and line breaks and adds `<s>`."""
    tokenizer = Tokenizer(models.WordLevel(TOKEN_IDS, unk_token=v.UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("isolated")]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{v.BEGIN} $A",
        pair=f"{v.BEGIN} $A $B",
        special_tokens=[(v.BEGIN, TOKEN_IDS[v.BEGIN])],
    )
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=v.UNKNOWN,
        pad_token=v.PADDING,
        bos_token=v.BEGIN,
        eos_token=v.END,
        padding_side="left",
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
        answers_with_lead_ins=True,  # winnow.evaluate.turns reads it
    )


def build_model(
    hidden: int, layers: int, intermediate: int, tie: bool, rope_pattern: str, seeding: float
) -> PreTrainedModel:
    """A fresh SmolLM3: grouped-query attention, rotary positions in some layers only."""
    special = {
        "bos_token_id": TOKEN_IDS[v.BEGIN],
        "eos_token_id": TOKEN_IDS[v.END],
        "pad_token_id": TOKEN_IDS[v.PADDING],
    }
    config = SmolLM3Config(
        vocab_size=len(v.VOCABULARY),
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=QUERY_HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=MAX_POSITIONS,
        rope_theta=10000.0,
        no_rope_layers=[int(flag) for flag in rope_pattern],
        layer_types=["full_attention"] * layers,
        tie_word_embeddings=tie,
        use_sliding_window=False,
        attn_implementation="sdpa",
        **special,
    )
    model = SmolLM3ForCausalLM(config)
    if seeding:
        seed_retrieval(model, seeding)
    model.generation_config = GenerationConfig(max_new_tokens=24, do_sample=False, **special)
    return model


@torch.no_grad()
def seed_retrieval(model: PreTrainedModel, strength: float) -> None:
    """Start as a blurred sketch of retrieval, which shortens the plateau before it.

    Layer 0 (rotary) gathers the words just before each position. Layer 1 (no
    positions) attends where those words are similar and copies the word it
    finds there. Nothing is frozen: training reshapes all of it.
    """
    base: Any = model.model
    embedding = base.embed_tokens.weight
    embedding.normal_(0.0, EMBEDDING_SCALE)
    # One coordinate is equal for all words: layer 0 needs something position alone can act on.
    embedding[:, 0] = 4 * EMBEDDING_SCALE
    gather, match = (layer.self_attn for layer in base.layers[:2])
    _attend_before(gather, model.config.hidden_size, strength)
    _copy_values(gather, gain=0.1, same_space=False)
    torch.nn.init.orthogonal_(match.k_proj.weight)
    shared = match.k_proj.weight.view(KV_HEADS, 1, HEAD_DIM, -1)
    match.q_proj.weight.copy_(
        shared.expand(-1, GROUP, -1, -1).reshape_as(match.q_proj.weight) + 0.3 * match.q_proj.weight
    )
    _copy_values(match, gain=0.2, same_space=True)


def _attend_before(attention: Any, hidden: int, strength: float) -> None:
    """Make the heads of each group attend around two and five words back."""
    pairs = HEAD_DIM // 2
    rates = 10000.0 ** (-torch.arange(pairs) / pairs)
    used = (torch.arange(pairs) < 8) / 8**0.5
    # After normalization the constant coordinate is about 3.8.
    size = (strength * HEAD_DIM**0.5) ** 0.5 / 3.8
    keys = torch.cat([used, torch.zeros(pairs)]) * size
    attention.k_proj.weight[:, 0] = keys.repeat(KV_HEADS)
    for head in range(QUERY_HEADS):
        angle = (2.0, 5.0)[head % GROUP] * rates
        query = torch.cat([used * angle.cos(), -used * angle.sin()]) * size
        attention.q_proj.weight[head * HEAD_DIM : (head + 1) * HEAD_DIM, 0] = query


def _copy_values(attention: Any, gain: float, same_space: bool) -> None:
    """Pass on what is attended to, as it is or turned into a space of its own."""
    values = torch.nn.init.orthogonal_(attention.v_proj.weight)
    source = values if same_space else torch.nn.init.orthogonal_(torch.empty_like(values))
    blocks = source.view(KV_HEADS, 1, HEAD_DIM, -1).expand(-1, GROUP, -1, -1)
    attention.o_proj.weight.copy_(blocks.reshape(QUERY_HEADS * HEAD_DIM, -1).T * gain / GROUP)
