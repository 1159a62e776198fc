"""Questions about one context, as one method or several compressed it, asked and answered side by side."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from winnow.cache.compressed import CompressedCache
from winnow.cache.context import Context
from winnow.cache.while_graphed import step_graphs
from winnow.evaluate.batch import Decoded, Said
from winnow.evaluate.decoding import clock
from winnow.evaluate.sampling import most_likely_of_each
from winnow.models.cache_argument import with_cache
from winnow.models.devices import input_device


@torch.no_grad()
def answers_after(
    model: PreTrainedModel,
    contexts: Sequence[Context],
    questions: Sequence[Tensor],
    max_new_tokens: int,
    stops: frozenset[int],
) -> list[list[Decoded]]:
    """Greedy answers to questions [n], each up to a stop token or `max_new_tokens` tokens, for every context.

    contexts: the same tokens in one row, compressed by one method or several. Questions are rows of one cache, padded
    on their left. The seconds are those of the questions, too.
    """
    begin = clock(model)
    asked, there = (each.repeat(len(contexts), 1) for each in _padded(questions))
    document = contexts[0].input_ids.shape[1]
    seen = document + asked.shape[1]
    # Everything that is ever seen, since a mask of the whole document is not made again for every token.
    mask = torch.ones(len(asked), seen + max_new_tokens, dtype=torch.long, device="cpu")
    mask[:, document:seen] = there
    positions = (document - 1 + there.cumsum(-1)).to(input_device(model))
    mask = mask.to(input_device(model))
    cache = CompressedCache.joined([context.cache() for context in contexts])
    cache.batch_repeat_interleave(len(questions))
    said = Said(len(asked), max_new_tokens, stops)
    tokens, steps = asked.to(input_device(model)), 0
    with step_graphs(model, max_new_tokens):
        while said.rows.open:
            tokens, positions, mask = said.rows.without_ended(cache, tokens, positions, mask)
            output = model(
                input_ids=tokens,
                attention_mask=mask[:, : seen + steps],
                position_ids=positions,
                **with_cache(model, cache),
            )
            steps += 1
            chosen = most_likely_of_each(output.logits[:, -1])
            begin, before = clock(model), begin
            said.step(begin - before)
            said.add(chosen)
            tokens, positions = chosen[:, None], positions[:, -1:] + 1
    answers = said.decoded()
    return [answers[first : first + len(questions)] for first in range(0, len(answers), len(questions))]


def _padded(questions: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Questions [n] as rows [R, q], and a mask [R, q] that is 0 for what was added on their left."""
    longest = max(map(len, questions))
    rows = torch.stack([F.pad(question, (longest - len(question), 0)) for question in questions])
    mask = torch.stack([F.pad(torch.ones_like(each), (longest - len(each), 0)) for each in questions])
    return rows, mask
