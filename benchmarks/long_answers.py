"""Drift of long answers of a real model that are folded: next tokens of its own text, method by method.

    python benchmarks/long_answers.py MODEL                                     # a directory, GGUF file or hub name
    python benchmarks/long_answers.py MODEL --tokens 1024 --budget 128 --every 64 --methods "snapkv;rkv"

The model answers once with all of its cache, greedily. Every method then reads prompt and answer again, the answer in
turns of as many tokens as are folded at a time: a turn sees the compressed text before it and all of itself, just as
tokens that come one by one do. Compared are the distributions of the next token. Prints a table, writes nothing.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import winnow
from reporting import machine, markdown_table
from winnow.models import load_model, open_model

QUESTION = (
    "A bakery sells rolls in bags of 6 and loaves one by one. On Monday it sold 14 bags and 35 loaves, on every later "
    "day of the week 3 bags more and 4 loaves fewer than the day before. A bag costs 2.40, a loaf 3.10. Work out, day "
    "by day from Monday to Saturday, how many rolls and loaves were sold and what was taken, check every sum by doing "
    "it a second time in another way, and say in the end which day took the most and how much the week took."
)
METHODS = (
    *("random", "streamingllm", "knorm", "keydiff", "snapkv", "adakv", "defensivekv", "h2o", "kvec"),
    *("rkv", "triattention", "expectedattention", "expectedattention(epsilon=0.01)+ada"),
)


class Drift(NamedTuple):
    """Distances of one method from the full cache over the tokens of an answer."""

    method: str
    divergence: float
    """Mean Kullback-Leibler divergence in nats."""
    same: float
    """Share of tokens whose most likely next token is that of the full cache."""
    held: int
    """Bytes at the end."""


def answer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tokens: int) -> tuple[Tensor, int]:
    """Prompt and answer [1, N] with the full cache, and the length of the prompt."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], tokenize=False, add_generation_prompt=True
    )
    ids = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
    whole = model.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
    return whole, ids.shape[1]


def replay(model: PreTrainedModel, ids: Tensor, prompt: int, method: winnow.Method, every: int) -> tuple[Tensor, int]:
    """Logits [n, V] for the answer's tokens under a method, and the bytes that are held in the end."""
    folds = None if method.full else every
    cache = winnow.CompressedCache(model, method, fold_every=folds)
    parts = [model(ids[:, :prompt], cache=cache).logits[0, -1:]]
    for turn in ids[:, prompt:-1].split(every, dim=1):
        parts.append(model(turn, cache=cache).logits[0])
    return torch.cat(parts), cache.stats().held_bytes


def drift(name: str, full: Tensor, own: Tensor, held: int) -> Drift:
    """Distances of logits [n, V] from those of the full cache."""
    divergences = [
        torch.nn.functional.kl_div(q.log_softmax(-1), p.log_softmax(-1), log_target=True, reduction="none").sum(-1)
        for p, q in zip(full.split(64), own.split(64), strict=True)
    ]
    same = (full.argmax(-1) == own.argmax(-1)).double().mean()
    return Drift(name, float(torch.cat(divergences).mean()), float(same), held)


def page(drifts: list[Drift], full: int, prompt: int, tokens: int) -> str:
    """The results for people."""
    body = [
        [
            each.method,
            f"{each.divergence:.4f}",
            f"{each.same:.1%}",
            f"{each.held / 2**20:.2f}",
            f"{each.held / full:.1%}",
        ]
        for each in drifts
    ]
    table = markdown_table(["method", "KL, nats", "same next token", "MiB held", "of the full cache"], body)
    return f"{machine()}\n\nA prompt of {prompt} tokens, an answer of {tokens}.\n\n{table}\n"


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a directory, a GGUF file or a hub name")
    parser.add_argument("--tokens", type=int, default=512, help="tokens of the answer")
    parser.add_argument("--budget", type=int, default=64, help="slots per KV head")
    parser.add_argument("--every", type=int, default=64, help="tokens that are folded at a time")
    parser.add_argument("--methods", type=str, default=";".join(METHODS), help="names, with ';' between them")
    chosen = parser.parse_args()
    source = open_model(chosen.model)
    model = load_model(source, "cpu", "float32")
    model.set_attn_implementation("winnow")
    with torch.no_grad():
        ids, prompt = answer(model, source.tokenizer, chosen.tokens)
        full, size = replay(model, ids, prompt, winnow.method("full"), chosen.every)
        drifts = []
        for name in chosen.methods.split(";"):
            method = winnow.method(name, chosen.budget)
            drifts.append(drift(name, full, *replay(model, ids, prompt, method, chosen.every)))
            print(drifts[-1], flush=True)
    print(page(drifts, size, prompt, chosen.tokens))


if __name__ == "__main__":
    main()
