"""Models that read no text without an image, which commands refuse: in Python they answer as under their own cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedModel

from support.families import COMMON, TOWER, VOCABULARY, prompt, sharpen
from winnow import CompressedCache

pytestmark = pytest.mark.usefixtures("one_thread")
N, IMAGE = 40, 4
FORMER = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "encoder_hidden_size": 32,
    "vocab_size": VOCABULARY,
}
BLIP: dict[str, Any] = {"qformer_config": FORMER, "num_query_tokens": IMAGE, "image_token_index": 96}
KOSMOS = {
    "vocab_size": VOCABULARY,
    "embed_dim": 64,
    "layers": 3,
    "ffn_dim": 96,
    "attention_heads": 4,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "blip-2": {**BLIP, "text_config": {**COMMON, "model_type": "opt", "ffn_dim": 96, "word_embed_proj_dim": 64}},
    "instructblip": {**BLIP, "text_config": {**COMMON, "model_type": "llama"}},
    "kosmos-2": {"text_config": KOSMOS, "latent_query_num": IMAGE},
}


def built(family: str) -> PreTrainedModel:
    config = AutoConfig.for_model(family, vision_config=TOWER, **OPTIONS[family])
    torch.manual_seed(0)
    return sharpen(AutoModelForImageTextToText.from_config(config))


def asked(family: str) -> dict[str, Tensor]:
    """A prompt whose first tokens stand for an image."""
    ids = prompt(length=N)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": torch.ones(1, 3, 16, 16)}
    if family == "kosmos-2":
        given["image_embeds_position_mask"] = torch.zeros_like(ids)
        given["image_embeds_position_mask"][:, 1 : 1 + IMAGE] = 1
    else:
        ids[:, :IMAGE] = BLIP["image_token_index"]
    if family == "instructblip":
        given["qformer_input_ids"] = prompt(length=5)
    return given


@pytest.mark.parametrize("family", OPTIONS)
def test_answers_are_those_of_the_stock_cache(family: str) -> None:
    model, given = built(family), asked(family)

    def logits(past: CompressedCache | None) -> Tensor:
        answer = model.generate(
            **given,
            past_key_values=past,
            max_new_tokens=5,
            min_new_tokens=5,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        return torch.cat(answer.logits)

    expected = logits(None)
    model.set_attn_implementation("winnow")
    torch.testing.assert_close(logits(CompressedCache(model, "full")), expected, atol=1e-5, rtol=1e-5)
    small = CompressedCache(model, "snapkv(window=3) @ 9")
    assert not torch.allclose(logits(small), expected, atol=1e-3)
    assert {sum(heads) / len(heads) for heads in small.stats().slots} == {9}
