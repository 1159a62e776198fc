"""Needles in a haystack as a benchmark: a grid of lengths and depths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from winnow.tasks.benchmark import Benchmark, BenchmarkError, Request, asked_tasks
from winnow.tasks.example import Example, Judging, Task
from winnow.tasks.haystack.asking import asked_examples, asked_lengths
from winnow.tasks.haystack.background import DATA, Background, background
from winnow.tasks.haystack.fitting import Pieces, TooLongError, Write, longest_example
from winnow.tasks.haystack.ruler_files import PACKAGE
from winnow.tasks.haystack.splitting import sentences_before
from winnow.tasks.niah.needles import Needle, multi, reasoning, single

LENGTHS = (1024, 2048, 4096)
DEPTHS = (50, 0, 100, 20, 80, 30, 70, 10, 90, 40, 60)
"""Percents of the haystack before the (first) needle, in an order whose every beginning is spread out."""
MAX_NEW_TOKENS = 50
SENTENCES = Pieces(0, 16.0)

BEFORE, BEHIND = "This is a very long story book: <book> ", " </book>.\n"
QUESTION, ANSWER = " Based on the content of the book, Question: {question}\n", "Answer:"
"""The prompt of Fu et al. (2024, arXiv 2402.10171), which SnapKV's, PyramidKV's and HeadKV's code have, too."""

TASKS = {
    "single": "one sentence, to be repeated",
    "multi": "three sentences apart from each other, to be put together",
    "reasoning": "what the older or younger one of two likes (HeadKV)",
}
# Who repeats both likings has not reasoned.
_JUDGING = {
    "single": Judging("contains_all", MAX_NEW_TOKENS),
    "multi": Judging("contains_all", MAX_NEW_TOKENS),
    "reasoning": Judging("classification", MAX_NEW_TOKENS),
}
_NEEDLES: dict[str, Callable[[int, int], Needle]] = {"single": single, "multi": multi, "reasoning": reasoning}


class Cell(NamedTuple):
    """A place in the grid, and which needle is there."""

    length: int
    depth: int
    number: int


def cell(length: int, index: int) -> Cell:
    """The cell of an example: all depths with one needle, then all with the next."""
    number, place = divmod(index, len(DEPTHS))
    return Cell(length, DEPTHS[place], number)


def load(request: Request) -> list[Task]:
    """The tasks, generated. Raises BenchmarkError for lengths without room."""
    names, hay = asked_tasks(request, "niah", TASKS), background(request.data, request.seed)
    return [Task("niah", name, _JUDGING[name], tuple(_examples(name, request, hay))) for name in names]


def _examples(name: str, request: Request, hay: Background) -> Iterator[Example]:
    for length in asked_lengths(request, LENGTHS):
        for index in range(asked_examples(request, len(DEPTHS))):
            place = cell(length, index)
            write = needle_example(_NEEDLES[name](request.seed, place.number), place, hay)
            try:
                yield longest_example(write, SENTENCES, request, length, MAX_NEW_TOKENS)
            except TooLongError as problem:
                raise BenchmarkError(f"The needles of {name}: {problem}") from None


def needle_example(needle: Needle, place: Cell, hay: Background) -> Write:
    """Examples of a cell, by the sentences of the haystack."""

    def write(count: int) -> Example:
        text = hidden(needle.sentences, place.depth, hay.sentences(count))
        return Example(
            name=f"{place.length}-{place.depth}-{place.number}",
            context=f"{BEFORE}{text}{BEHIND}",
            question=QUESTION.format(question=needle.question),
            answers=needle.answers,
            choices=needle.choices,
            answer_prefix=ANSWER,
            facts={"length": place.length, "depth": place.depth, "haystack": hay.name},
        )

    return write


def hidden(needles: tuple[str, ...], depth: int, sentences: list[str]) -> str:
    """Sentences with the first needle at a depth and the others evenly between it and the end, as Kamradt's are."""
    apart = (100 - depth) / len(needles)
    places = [sentences_before(sentences, (depth + number * apart) / 100) for number in range(len(needles))]
    told, start = [], 0
    for place, needle in zip(places, needles, strict=True):
        told += [*sentences[start:place], needle]
        start = place
    return " ".join([*told, *sentences[start:]])


NIAH = Benchmark(
    name="niah",
    summary="needles in a haystack, by length and depth: one, three, or a pair to reason about",
    source="Kamradt 2023 (github.com/gkamradt/LLMTest_NeedleInAHaystack); Fu et al. 2024 (arXiv 2410.19258), figure 9",
    tasks=TASKS,
    load=load,
    lengths=LENGTHS,
    data=f"{DATA}; the package {PACKAGE} has the essays, too. Without any, Winnow's own prose serves.",
)
