"""Training batches: random documents, then questions or a second telling."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from model import TOKEN_IDS
from torch import Tensor

from winnow.tasks import vocabulary as v
from winnow.tasks.document import RESERVE, FactCounts, Story, add_filler, write_story
from winnow.tasks.sentences import Words

# Weight of the plain language-model loss on a few words of the documents.
TEXT_WEIGHT, TEXT_SHARE = 0.1, 0.06
EASY_WEIGHT = 0.5
_EASY = frozenset(v.FUNCTION_WORDS) | {v.END}
# Below one, so that the accuracy counts the words found for questions alone.
RETOLD_WEIGHT = 0.9


@dataclass
class Batch:
    """Rows of equal length; a weight of zero leaves a target out of the loss."""

    inputs: Tensor
    targets: Tensor
    weights: Tensor


@dataclass
class Row:
    """Words of one training text with the weight of predicting each."""

    words: Words
    weights: list[float]

    def add(self, words: Words, weights: list[float] | float = 0.0) -> None:
        """Append words."""
        self.words += words
        self.weights += weights if isinstance(weights, list) else [weights] * len(words)


def sample_batch(rng: random.Random, length: int, tokens: int, warm: bool) -> Batch:
    """Sample rows of `length` tokens, `tokens` of them altogether.

    In the warm-up level every third batch repeats random words, which makes
    copying emerge early.
    """
    choice = rng.random()
    rows = max(1, tokens // length)
    if warm and choice < 0.3:
        return _to_tensors([_copy_row(rng, length) for _ in range(rows)], length)
    again = 0.7 if warm else 0.3
    sampled = [_retold_row(rng, length) if rng.random() < again else _asked_row(rng, length) for _ in range(rows)]
    return _to_tensors(sampled, length)


def _copy_row(rng: random.Random, length: int) -> Row:
    """Random words, again and again; few different ones, so that context decides."""
    span, first = rng.randint(length // 4, length // 2), True
    few = rng.sample(v.VOCABULARY[len(v.SPECIAL_TOKENS) :], rng.randint(6, 30))
    words = rng.choices(few, k=span)
    row = Row([v.BEGIN], [0.0])
    while len(row.words) <= length:
        row.add(words, [0.0] + [0.0 if first else RETOLD_WEIGHT] * (span - 1))
        first = False
    return row


def _random_layout(rng: random.Random, budget: int) -> FactCounts:
    most = max(1, budget // 80)
    return FactCounts(
        secrets=rng.randint(0, min(most, 10)),
        pairs=rng.randint(1, min(most + 1, 14)),
        attributes=rng.randint(1, 3),
        chains=rng.randint(0, min(most, 10)),
    )


def _story(rng: random.Random, budget: int, filled: float) -> tuple[Story, list[Words]]:
    """Write a document of about `budget` words, a share of them being facts at most."""
    story = write_story(rng, _random_layout(rng, budget), max(32, int(budget * filled)))
    return story, add_filler(rng, story, budget)


def _tell(rng: random.Random, row: Row, statements: list[Words]) -> None:
    for words in statements:
        row.add(words, [TEXT_WEIGHT if rng.random() < TEXT_SHARE else 0.0 for _ in words])


def _asked_row(rng: random.Random, length: int) -> Row:
    """A document and questions: often many after a shorter text, sometimes few."""
    share = rng.uniform(0.4, 0.7) if rng.random() < 0.7 else 1.0
    budget = min(length - RESERVE, max(40, int(length * share)))
    filled = rng.uniform(0.5, 1.0) if length <= 192 else rng.uniform(0.2, 0.9)
    story, statements = _story(rng, budget, filled)
    row = Row([v.BEGIN], [0.0])
    _tell(rng, row, statements)
    for question in story.questions:
        answer = [*question.answer, v.END]
        asked = ["question", ":", *question.words, "answer", ":"]
        if len(row.words) + len(asked) + len(answer) > length:
            continue
        row.add(asked)
        row.add(answer, [answer_weight(word) for word in answer])
    return row


def answer_weight(word: str) -> float:
    """Full weight for words that had to be found, little for the words around them."""
    return EASY_WEIGHT if word in _EASY else 1.0


def _retold_row(rng: random.Random, length: int) -> Row:
    """Facts, then the same facts in other orders, supervised at every value."""
    story, statements = _story(rng, max(48, int(length * rng.uniform(0.35, 0.65))), 1.0)
    if not story.statements:
        return _asked_row(rng, length)
    row = Row([v.BEGIN], [0.0])
    _tell(rng, row, statements)
    while story.statements and len(row.words) <= length:
        for words in rng.sample(story.statements, len(story.statements)):
            row.add(words, [0.0] * (len(words) - 2) + [RETOLD_WEIGHT, 0.0])
    return row


def _to_tensors(rows: list[Row], length: int) -> Batch:
    ids, weights = [], []
    for row in rows:
        missing = length + 1 - len(row.words)
        ids.append([TOKEN_IDS[w] for w in row.words[: length + 1]] + [1] * max(0, missing))
        weights.append(row.weights[: length + 1] + [0.0] * max(0, missing))
    tensor, weight = torch.tensor(ids), torch.tensor(weights)
    return Batch(tensor[:, :-1], tensor[:, 1:], weight[:, 1:])
