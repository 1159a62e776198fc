"""A greedy answer whose every step is tallied."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from winnow.estimate.needle.capture import showing
from winnow.estimate.needle.prompt import Prompt
from winnow.estimate.needle.scoring import Tally
from winnow.evaluate.greedy import stop_tokens


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
    tokens = prompt.tokens[None].to(model.device)
    said: list[int] = []
    with showing(model, tally.see):
        _read(model, tokens[:, :-1], cache, chunk_size)
        current = tokens[:, -1:]
        while len(said) < max_new_tokens:
            token = int(_forward(model, current, cache)[0, -1].argmax())
            if token in stops:
                break
            said.append(token)
            tally.count(token)
            if _ends_line(tokenizer, said):
                break
            current = torch.tensor([[token]], device=model.device)
    return str(tokenizer.decode(said, skip_special_tokens=True)).strip()


def _read(model: PreTrainedModel, tokens: Tensor, cache: DynamicCache, chunk_size: int | None) -> None:
    step = chunk_size or tokens.shape[1]
    for start in range(0, tokens.shape[1], step):
        _forward(model, tokens[:, start : start + step], cache)


def _forward(model: PreTrainedModel, tokens: Tensor, cache: DynamicCache) -> Tensor:
    """Logits [1, 1, V] of the last token, where the model can leave out the others."""
    last_only = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
    logits: Tensor = model(input_ids=tokens, past_key_values=cache, use_cache=True, **last_only).logits
    return logits


def _ends_line(tokenizer: PreTrainedTokenizerBase, said: list[int]) -> bool:
    """True if the newest token breaks the line after some text; models without a stop token go on for ever."""
    if "\n" not in tokenizer.decode(said[-1:]):
        return False
    return bool(str(tokenizer.decode(said, skip_special_tokens=True)).strip())
