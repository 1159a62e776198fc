"""Work of prompts, relative to each other."""

from __future__ import annotations

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from winnow.estimate.needle.effort import ANSWER, Effort


def test_attention_is_counted_beside_the_weights():
    config = LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, vocab_size=50, tie_word_embeddings=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    query, kv, layers = 4 * 8, 2 * 8, 3
    # Projections of queries, keys, values and outputs; gate, up and down; two norms a layer, one at the end; the head.
    weights = layers * (2 * 64 * query + 2 * 64 * kv + 3 * 64 * 96 + 2 * 64) + 64 + 50 * 64
    effort = Effort.of(model)
    assert effort.attention == pytest.approx(2 * layers * query / weights, rel=1e-2)
    n = 1000
    # Each token meets those before it: n squared halves.
    assert effort(n) - ANSWER == pytest.approx(n * (1 + effort.attention * n / 2))
    assert effort(2 * n) - ANSWER > 2 * (effort(n) - ANSWER)
