"""Probabilities of given continuations of a compressed prompt, token by token."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from winnow.evaluate.batch import AnswerStart
from winnow.models.cache_argument import with_cache
from winnow.models.devices import input_device
from winnow.models.kinds import counts_anew, starts_anew
from winnow.models.positions import positions_from

_CUES = ("Answer:", "\n")
"""Ends of prompts; texts that grow together with the first one are cut behind the second."""


def continuation_tokens(tokenizer: PreTrainedTokenizerBase, text: str) -> Tensor:
    """[n] tokens of a text as it goes on behind a prompt, without special ones.

    A text on its own may be cut otherwise: some tokenizers put a blank before whatever comes first. So it is cut
    together with a few words, as lm-evaluation-harness cuts it together with its prompt, and what follows them counts.
    """
    behind = (_behind(tokenizer, cue, text) for cue in _CUES)
    found = next((tokens for tokens in behind if tokens is not None), None)
    return torch.tensor(_ids(tokenizer, text) if found is None else found, dtype=torch.int64, device="cpu")


def _behind(tokenizer: PreTrainedTokenizerBase, cue: str, text: str) -> list[int] | None:
    """Tokens of a text behind a cue; None where a token holds the end of one and the beginning of the other."""
    before, whole = _ids(tokenizer, cue), _ids(tokenizer, cue + text)
    return whole[len(before) :] if whole[: len(before)] == before else None


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False).input_ids)


@torch.no_grad()
def log_probabilities(model: PreTrainedModel, start: AnswerStart, tokens: Tensor) -> Tensor:
    """[n, V] log-probabilities in fp32: entry i for what follows the prompt and the first i of tokens [n].

    Entry 0 is of the prompt's own last token. The cache of the start is used up.
    """
    logits = [start.logits[None]]
    if len(tokens) > 1:
        fed = tokens[None, :-1].to(input_device(model))
        for piece in fed.split(1 if starts_anew(model.config) else fed.shape[1], dim=1):
            seen = start.cache.get_seq_length()
            placed = {"position_ids": positions_from(seen, piece)} if counts_anew(model.config) else {}
            logits.append(model(input_ids=piece, **with_cache(model, start.cache), **placed).logits[0])
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
