"""The loop of `model.generate` with candidates, several of which are checked in one pass."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation import BaseStreamer

from winnow.cache.compressed import CompressedCache
from winnow.evaluate.decoding import decode, prefill
from winnow.evaluate.lookup import PromptLookup
from winnow.evaluate.sampling import most_likely_of_each


class CandidateLoop:
    """A function for `custom_generate`: one answer from a cache, of the tokens that transformers' own loop chooses."""

    def __init__(self, cache: CompressedCache, most: int, streamer: BaseStreamer | None) -> None:
        """most: candidates at a time, at most. streamer: of the answer; transformers gives it to no such function."""
        self._cache = cache
        self._most = most
        self._streamer = streamer

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **named: Any,
    ) -> Tensor:
        """The prompt [1, N], of which the cache may have seen the beginning, and the answer behind it."""
        cache, tokens = self._cache, input_ids
        lookup = PromptLookup(tokens[0].tolist(), self._most)
        logits = prefill(model, tokens[:, cache.get_seq_length() :], cache)

        def chosen(logits: Tensor) -> int:
            scores = logits_processor(tokens, logits.to(torch.float32, copy=True)[None])
            return int(_drawn(scores) if generation_config.do_sample else most_likely_of_each(scores))

        most = generation_config.max_length - tokens.shape[1]
        # Criteria tell where the answer ends, of tokens that stop it, too.
        with closing(decode(model, cache, logits, most, frozenset(), chosen, lookup)) as answer:
            for token in answer:
                tokens = torch.cat([tokens, tokens.new_tensor([[token]])], dim=1)
                if self._streamer is not None:
                    self._streamer.put(tokens[:, -1])
                if bool(stopping_criteria(tokens, None).all()):
                    break
        if self._streamer is not None:
            self._streamer.end()
        return tokens


def _drawn(scores: Tensor) -> Tensor:
    """Tokens [1] by scores [1, V], with torch's own random numbers."""
    return torch.multinomial(scores.softmax(dim=-1), num_samples=1)[:, 0]
