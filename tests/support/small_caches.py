"""Small caches and contexts: a model, a method and a prompt that give heads different slots."""

from __future__ import annotations

import torch

import winnow
from support.families import build, prompt

GREEDY = {"max_new_tokens": 10, "do_sample": False}
N = 40


def made(family: str = "llama", seed: int = 0, **overrides):
    """A small model that attends with winnow."""
    model = build(family, seed, **overrides)
    model.set_attn_implementation("winnow")
    return model


def method(budget: int = 9):
    return winnow.method("adakv", budget=budget, window=3, floor=0.0)


def compress(model, **options):
    return winnow.compress(model, prompt(length=N), method(), **options)


def cache(model, budget: int = 9, **kwargs):
    return winnow.CompressedCache(model, method(budget), **kwargs)


def stepwise(model, ids, steps: int = 10, budget: int = 9) -> torch.Tensor:
    """Greedy decoding by hand: prompt, then token by token, without generate()."""
    past, out = cache(model, budget), ids
    with torch.no_grad():
        for _ in range(steps):
            logits = model(out[:, past.get_seq_length() :], past_key_values=past).logits[:, -1]
            out = torch.cat([out, logits.argmax(-1, keepdim=True)], dim=1)
    return out
