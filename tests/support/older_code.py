"""Models that bring code of their own, from before transformers renamed the argument for the cache."""

from __future__ import annotations

from typing import Any

from transformers import LlamaForCausalLM

from winnow.models.cache_argument import cache_name

_NAME = cache_name(LlamaForCausalLM.forward) or ""


class OlderForward(LlamaForCausalLM):
    """Computes what Llama does."""

    def forward(
        self, input_ids: Any = None, attention_mask: Any = None, past_key_values: Any = None, **others: Any
    ) -> Any:
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, **{_NAME: past_key_values}, **others)


class OlderGeneration(OlderForward):
    """The same, with its own way to choose what a step is given."""

    def prepare_inputs_for_generation(
        self, input_ids: Any, past_key_values: Any = None, attention_mask: Any = None, **others: Any
    ) -> dict[str, Any]:
        seen = 0 if past_key_values is None else past_key_values.get_seq_length()
        return {
            "input_ids": input_ids[:, seen:],
            "attention_mask": attention_mask,
            "past_key_values": past_key_values,
            "use_cache": others.get("use_cache"),
        }
