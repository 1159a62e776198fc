"""BABILong as a benchmark: its first five tasks."""

from __future__ import annotations

from collections.abc import Iterator

from winnow.tasks.babilong.prompts import PROMPTS, QUESTION, TEMPLATE
from winnow.tasks.babilong.questions import DRAWS, Asked
from winnow.tasks.babilong.story import GIVERS, ROOMS, THINGS
from winnow.tasks.benchmark import Benchmark, BenchmarkError, Request, asked_tasks
from winnow.tasks.example import Example, Judging, Task
from winnow.tasks.haystack.asking import asked_examples, asked_lengths
from winnow.tasks.haystack.background import DATA, Background, background
from winnow.tasks.haystack.drawing import Draw
from winnow.tasks.haystack.fitting import Pieces, TooLongError, Write, longest_example
from winnow.tasks.haystack.ruler_files import PACKAGE

EXAMPLES, LENGTHS = 100, (1000, 2000, 4000)
"""As many as BABILong's own, of its shorter lengths, where nobody asked for others."""
MAX_NEW_TOKENS = 20
PROMPT_TOKENS, FACT_TOKENS = 300, 8
"""BABILong reckons with so many tokens for what is around the text, and for each fact."""
STARTS = 2000
"""Sentences of the background at one of which the text around an example's facts begins."""
SENTENCES = Pieces(0, 16.0)

TASKS = {
    "qa1": "where somebody is: one supporting fact",
    "qa2": "where something is: two supporting facts",
    "qa3": "where something was before: three supporting facts",
    "qa4": "what is north, east, … of a room: relations with two arguments",
    "qa5": "who gave what to whom: relations with three arguments",
}
LABELS = {**dict.fromkeys(TASKS, ROOMS), "qa5": (*GIVERS, *THINGS)}
"""All answers that there are."""


def load(request: Request) -> list[Task]:
    """The tasks, generated; length 0 is facts alone. Raises BenchmarkError for lengths without room."""
    names, around = asked_tasks(request, "babilong", TASKS), background(request.data, request.seed)
    judging = Judging("babilong", MAX_NEW_TOKENS)
    return [Task("babilong", name, judging, tuple(_examples(name, request, around))) for name in names]


def _examples(name: str, request: Request, around: Background) -> Iterator[Example]:
    for length in asked_lengths(request, LENGTHS):
        for index in range(asked_examples(request, EXAMPLES)):
            yield _example(name, Draw(f"babilong-{name}", length, index, request.seed), request, around)


def _example(name: str, draw: Draw, request: Request, around: Background) -> Example:
    """With fewer facts where there is no room for all of them, as with tokenizers that make many tokens of a word."""
    most = (draw.length - PROMPT_TOKENS) // FACT_TOKENS if draw.length else None
    while True:
        asked = DRAWS[name](draw.rng("story"), most)
        write = facts_example(name, asked, draw, around)
        if not draw.length:
            return write(0)
        try:
            return longest_example(write, SENTENCES, request, draw.length, MAX_NEW_TOKENS)
        except TooLongError as problem:
            if len(asked.facts) <= 4:
                raise BenchmarkError(f"BABILong's {name}: {problem}") from None
            most = len(asked.facts) // 2


def facts_example(name: str, asked: Asked, draw: Draw, around: Background) -> Write:
    """Examples of a story, by the sentences of the text around it."""
    rng = draw.rng("places")
    start, shares = rng.randrange(STARTS), sorted(rng.random() for _ in asked.facts)
    question = QUESTION.format(question=asked.question)
    choices = tuple(label for label in LABELS[name] if label.lower() not in asked.question.lower())

    def write(count: int) -> Example:
        text = " ".join(_mixed(asked.facts, shares, around.sentences(count, start)))
        return Example(
            name=draw.name,
            context=TEMPLATE.format(**PROMPTS[name]._asdict(), context=text),
            question=question,
            answers=(asked.answer,),
            choices=choices,
            facts={"length": draw.length, "haystack": around.name if draw.length else "none"},
        )

    return write


def _mixed(facts: list[str], shares: list[float], sentences: list[str]) -> list[str]:
    """Facts in their order, each anywhere between the sentences: at a share of all places that there are."""
    places = [int(share * (len(sentences) + 1)) for share in shares]
    told, start = [], 0
    for fact, place in zip(facts, places, strict=True):
        told += [*sentences[start:place], fact]
        start = place
    return [*told, *sentences[start:]]


BABILONG = Benchmark(
    name="babilong",
    summary="facts about people and things inside other text, and questions that combine them: bAbI's first five tasks",
    source="Kuratov et al. 2024 (arXiv 2406.10149), github.com/booydar/babilong; Weston et al. 2015 (arXiv 1502.05698)",
    tasks=TASKS,
    load=load,
    lengths=LENGTHS,
    data=(
        f"{DATA}; BABILong's own text is books of PG19. The package {PACKAGE} has the essays, too. Without any, "
        "Winnow's own prose serves."
    ),
    groups={"average": tuple(TASKS)},
)
