"""A greedy answer whose every step is tallied."""

from __future__ import annotations

import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from winnow.estimate.needle.capture import showing
from winnow.estimate.needle.prompt import Prompt
from winnow.estimate.needle.scoring import Tally
from winnow.evaluate.decoding import prefill, stop_tokens
from winnow.models.devices import input_device


@torch.no_grad()
def answer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt: Prompt,
    tally: Tally,
    max_new_tokens: int,
    chunk_size: int | None = None,
) -> str:
    """The model's own greedy answer from its own dense cache: at most `max_new_tokens` tokens, one line.

    The prompt's last token is a step of its own, because its attention yields the first token of the answer. The stop
    token is no part of the answer, so its step is not counted. chunk_size: prefill so many tokens at a time.
    """
    stops = stop_tokens(model)
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    tokens = prompt.tokens[None].to(input_device(model))
    said: list[int] = []
    with showing(model, tally.see):
        prefill(model, tokens[:, :-1], cache, chunk_size)
        current = tokens[:, -1:]
        while len(said) < max_new_tokens:
            token = int(prefill(model, current, cache).argmax())
            if token in stops:
                break
            said.append(token)
            tally.count(token)
            if _ends_line(tokenizer, said):
                break
            current = torch.tensor([[token]], device=input_device(model))
    return str(tokenizer.decode(said, skip_special_tokens=True)).strip()


def _ends_line(tokenizer: PreTrainedTokenizerBase, said: list[int]) -> bool:
    """True if the newest token breaks the line after some text; models without a stop token go on for ever."""
    if "\n" not in tokenizer.decode(said[-1:]):
        return False
    return bool(str(tokenizer.decode(said, skip_special_tokens=True)).strip())
