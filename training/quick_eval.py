"""Exact match during training, without generating.

Greedy generation gives the right answer exactly when every token of the answer
and the end token are the most likely ones given the right tokens before them.
One forward pass over prompt and answer therefore measures the same thing.
"""

from __future__ import annotations

import torch
from model import TOKEN_IDS, build_tokenizer
from transformers import PreTrainedModel

from winnow.tasks import QUESTION_KINDS, format_prompt, generate_document
from winnow.tasks import vocabulary as v


@torch.no_grad()
def teacher_forced_scores(
    model: PreTrainedModel, tokens: int, documents: int = 16, first_seed: int = 10_000
) -> dict[str, float]:
    """Share of held-out questions of each kind whose whole answer is predicted."""
    tokenizer = build_tokenizer()
    right: dict[str, list[bool]] = {kind: [] for kind in QUESTION_KINDS}
    model.eval()
    for seed in range(first_seed, first_seed + documents):
        document = generate_document(seed, tokens, 2)
        rows = []
        for question in document.questions:
            prompt = tokenizer(format_prompt(document.text, question.text)).input_ids
            answer = tokenizer(question.answer, add_special_tokens=False).input_ids
            rows.append((question.kind, prompt, [*answer, TOKEN_IDS[v.END]]))
        width = max(len(prompt) + len(answer) for _, prompt, answer in rows)
        padded = [(p + a + [TOKEN_IDS[v.PADDING]] * width)[:width] for _, p, a in rows]
        best = model(input_ids=torch.tensor(padded), use_cache=False).logits.argmax(-1)
        for guess, (kind, prompt, answer) in zip(best, rows, strict=True):
            start = len(prompt) - 1
            right[kind].append(guess[start : start + len(answer)].tolist() == answer)
    model.train()
    return {kind: round(sum(r) / max(1, len(r)), 3) for kind, r in right.items()}
