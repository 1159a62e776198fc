"""Questions about one compressed context, asked and answered side by side."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from winnow.cache.context import Context
from winnow.evaluate.batch import Decoded, Said
from winnow.evaluate.decoding import clock


@torch.no_grad()
def answers_after(
    model: PreTrainedModel, context: Context, questions: Sequence[Tensor], max_new_tokens: int, stops: frozenset[int]
) -> list[Decoded]:
    """Greedy answers to questions [n] about a context of one row, each up to a stop token or `max_new_tokens` tokens.

    Questions are rows of one cache, padded on their left. The seconds are those of the questions, too.
    """
    begin = clock(model)
    asked, there = _padded(questions)
    document, seen = context.input_ids.shape[1], context.input_ids.shape[1] + asked.shape[1]
    # Everything that is ever seen, since a mask of the whole document is not made again for every token.
    mask = torch.ones(len(questions), seen + max_new_tokens, dtype=torch.long)
    mask[:, document:seen] = there
    positions = (document - 1 + there.cumsum(-1)).to(model.device)
    mask = mask.to(model.device)
    cache = context.cache()
    cache.batch_repeat_interleave(len(questions))
    said = Said(len(questions), max_new_tokens, stops)
    tokens, steps = asked.to(model.device), 0
    while said.open:
        output = model(
            input_ids=tokens,
            attention_mask=mask[:, : seen + steps],
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
        )
        steps += 1
        chosen = output.logits[:, -1].argmax(-1)
        said.add(chosen)
        tokens, positions = chosen[:, None], positions[:, -1:] + 1
    share = (clock(model) - begin) / len(questions)
    return [Decoded(text, steps, share) for text in said.texts]


def _padded(questions: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Questions [n] as rows [R, q], and a mask [R, q] that is 0 for what was added on their left."""
    longest = max(map(len, questions))
    rows = torch.stack([F.pad(question, (longest - len(question), 0)) for question in questions])
    mask = torch.stack([F.pad(torch.ones_like(each), (longest - len(each), 0)) for each in questions])
    return rows, mask
