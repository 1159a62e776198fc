"""Random documents whose facts can be asked for, as words and as text."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from winnow.metrics import Expected
from winnow.strict_json import parse_lines
from winnow.tasks import sentences as s
from winnow.tasks import vocabulary as v
from winnow.tasks.prompts import join_words, lead_in, to_text

QUESTION_KINDS: tuple[str, ...] = ("single", "multikey", "reasoning", "chain")
CHAIN_LINKS = 3
# Tokens kept free for the start token, one question with its marks, and its answer.
RESERVE = 44


@dataclass(frozen=True)
class Question:
    """A question about a document: its kind, its text and its right answer, after the prompt's lead-in."""

    kind: str
    text: str
    answer: str
    others: tuple[str, ...] = ()
    """Further answers that are right as well."""
    choices: tuple[str, ...] = ()
    """All classes or options that there are, for metrics that want them."""

    @property
    def expected(self) -> Expected:
        """All right answers."""
        return Expected((self.answer, *self.others), self.choices)


def read_questions(path: Path) -> list[Question]:
    """Questions of a JSONL file with "kind", "text" and "answer"."""
    return [Question(**entry) for _, entry in parse_lines(path.read_text(encoding="utf-8"))]


@dataclass(frozen=True)
class Document:
    """A generated document with questions that it answers."""

    text: str
    questions: tuple[Question, ...]


@dataclass(frozen=True)
class WordQuestion:
    """A question as words, for sampling training batches without a tokenizer."""

    kind: str
    words: s.Words
    answer: s.Words


# The statements of one fact or group of facts, and the questions they answer.
Passage = tuple[list[s.Words], list[WordQuestion]]


@dataclass(frozen=True)
class FactCounts:
    """The number of facts of each kind in a document."""

    secrets: int
    pairs: int
    attributes: int
    chains: int


@dataclass
class Story:
    """A document as words: statements, filler and every question it answers."""

    statements: list[s.Words] = field(default_factory=list)
    questions: list[WordQuestion] = field(default_factory=list)
    people: tuple[str, ...] = ()

    def size(self) -> int:
        """Count the words of all statements."""
        return sum(map(len, self.statements))


def write_story(rng: random.Random, counts: FactCounts, budget: int) -> Story:
    """Write statements until all facts are told or `budget` words are full.

    Statements that no longer fit are left out together with their questions.
    """
    story = Story(people=tuple(rng.sample(v.NAMES, 2 * counts.pairs)) or v.NAMES)
    pool = rng.sample(v.ATTRIBUTES, min(len(v.ATTRIBUTES), max(3, counts.attributes + 3)))
    writers: list[Callable[[], Passage]] = [partial(_write_secret, rng, *drawn) for drawn in _secrets(rng, counts)]
    for index in range(counts.pairs):
        pair = (story.people[2 * index], story.people[2 * index + 1])
        chosen = rng.sample(pool, min(counts.attributes, len(pool)))
        writers.append(partial(_write_pair, rng, pair, chosen))
    names = rng.sample(v.VARIABLES, CHAIN_LINKS * counts.chains)
    for index in range(counts.chains):
        chain = names[CHAIN_LINKS * index : CHAIN_LINKS * (index + 1)]
        writers.append(partial(_write_chain, rng, chain))
    rng.shuffle(writers)
    for write in writers:
        statements, questions = write()
        if story.size() + sum(map(len, statements)) <= budget:
            story.statements += statements
            story.questions += questions
    rng.shuffle(story.statements)
    rng.shuffle(story.questions)
    return story


def add_filler(rng: random.Random, story: Story, budget: int) -> list[s.Words]:
    """Spread filler sentences over the statements, up to `budget` words in all."""
    extra: list[s.Words] = []
    room = budget - story.size()
    while True:
        sentence = s.filler(rng, story.people)
        if len(sentence) > room:
            break
        room -= len(sentence)
        extra.append(sentence)
    slots = [True] * len(story.statements) + [False] * len(extra)
    rng.shuffle(slots)
    facts, rest = iter(story.statements), iter(extra)
    return [next(facts) if slot else next(rest) for slot in slots]


def generate_document(seed: int, tokens: int = 1024, questions_per_kind: int = 4) -> Document:
    """Generate the held-out document of a seed, the same one on every call.

    The prompt of one question and its answer fit into `tokens` tokens of the
    bundled model. A short document may answer fewer questions than asked for.
    """
    if tokens < 2 * RESERVE:
        raise ValueError(f"tokens must be at least {2 * RESERVE}, got {tokens}")
    if questions_per_kind < 1:
        raise ValueError(f"questions_per_kind must be positive, got {questions_per_kind}")
    rng = random.Random(f"document-{seed}-{tokens}-{questions_per_kind}")
    count = questions_per_kind
    budget = tokens - RESERVE
    pairs = min(len(v.NAMES) // 2, max(count, min(12, tokens // 128)))
    counts = FactCounts(
        secrets=min(count, len(v.SECRETS)),
        pairs=pairs,
        attributes=2 if tokens >= 512 else 1,
        chains=min(count, len(v.VARIABLES) // CHAIN_LINKS),
    )
    story = write_story(rng, counts, budget)
    words = add_filler(rng, story, budget)
    chosen: list[Question] = []
    for kind in QUESTION_KINDS:
        found = [q for q in story.questions if q.kind == kind][:count]
        chosen += [_as_text(q) for q in found]
    return Document(" ".join(to_text(sentence) for sentence in words), tuple(chosen))


def _as_text(question: WordQuestion) -> Question:
    """The question as text, its answer without the part that the prompt says already."""
    text, answer = to_text(question.words), join_words(question.answer)
    return Question(question.kind, text, answer[len(lead_in(text)) :].strip())


def _secrets(rng: random.Random, counts: FactCounts) -> list[tuple[str, str]]:
    kinds = rng.sample(v.SECRETS, counts.secrets)
    return list(zip(kinds, rng.sample(v.PLACES, counts.secrets), strict=True))


def _write_secret(rng: random.Random, kind: str, place: str) -> Passage:
    value = rng.choice(v.VALUES)
    question = WordQuestion("single", s.ask_secret(kind, place), s.answer_secret(kind, place, value))
    return [s.secret(rng, kind, place, value)], [question]


def _write_pair(rng: random.Random, pair: tuple[str, str], attributes: list[str]) -> Passage:
    word, winner = rng.choice(v.COMPARATIVES), rng.choice(pair)
    statements = [s.comparison(rng, pair, word, winner)]
    questions = []
    for attribute in attributes:
        values = rng.sample(v.ATTRIBUTE_VALUES[attribute], 2)
        for person, value in zip(pair, values, strict=True):
            statements.append(s.favorite(rng, person, attribute, value))
            asked = s.ask_favorite(person, attribute)
            answer = s.answer_favorite(person, attribute, value)
            questions.append(WordQuestion("multikey", asked, answer))
            if person == winner:
                asked = s.ask_comparison(pair, word, attribute)
                answer = s.answer_comparison(pair, word, winner, attribute, value)
                questions.append(WordQuestion("reasoning", asked, answer))
    return statements, questions


def _write_chain(rng: random.Random, names: list[str]) -> Passage:
    links = list(zip(names, [*names[1:], rng.choice(v.COLORS)], strict=True))
    statements = [s.assignment(rng, name, value) for name, value in links]
    question = WordQuestion("chain", s.ask_variable(names[0]), s.answer_chain(links))
    return statements, [question]
