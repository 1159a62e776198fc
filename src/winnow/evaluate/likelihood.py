"""Probabilities of given continuations of a compressed prompt, token by token."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from winnow.evaluate.batch import Row


def continuation_tokens(tokenizer: PreTrainedTokenizerBase, text: str) -> Tensor:
    """[n] tokens of a text that goes on behind a prompt, without special ones."""
    tokens: Tensor = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids[0]
    return tokens.long()


@torch.no_grad()
def log_probabilities(model: PreTrainedModel, start: Row, tokens: Tensor) -> Tensor:
    """[n, V] log-probabilities in fp32: entry i for what follows the prompt and the first i of tokens [n].

    Entry 0 is of the prompt's own last token. The cache of the start is used up.
    """
    logits = [start.logits[None]]
    if len(tokens) > 1:
        fed = tokens[None, :-1].to(model.device)
        logits.append(model(input_ids=fed, past_key_values=start.cache, use_cache=True).logits[0])
    return torch.cat(logits).float().log_softmax(-1)


def total(log_probs: Tensor, tokens: Tensor) -> float:
    """Log-probability of tokens [n], from [n, V]."""
    return float(log_probs.gather(1, tokens[:, None].to(log_probs.device)).double().sum())


class Fidelity(NamedTuple):
    """Nearness of the next token's distribution to the full cache's, in means over positions."""

    nll: float
    """Negative log-likelihood of the tokens that come, in nats."""
    kl: float
    """KL(full cache || this one), in nats."""
    agreement: float
    """Share of positions whose likeliest token is the full cache's."""


def fidelity(log_probs: Tensor, full: Tensor, tokens: Tensor) -> Fidelity:
    """Nearness of [n, V] to the full cache's [n, V] on tokens [n]."""
    divergence = (full.exp() * (full - log_probs)).sum(-1).double().clamp(min=0)
    agreed = (log_probs.argmax(-1) == full.argmax(-1)).double()
    return Fidelity(-total(log_probs, tokens) / len(tokens), float(divergence.mean()), float(agreed.mean()))
