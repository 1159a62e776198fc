"""Facts: English prose in which six facts of six kinds are hidden, and a question about each; nothing to download."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from winnow.tasks.benchmark import Benchmark, BenchmarkError, Request, asked_tasks
from winnow.tasks.document import Document
from winnow.tasks.example import Example, Judging, Task
from winnow.tasks.facts.documents import fact_document
from winnow.tasks.haystack.asking import asked_examples, asked_lengths
from winnow.tasks.haystack.fitting import Pieces, largest_fitting

LENGTHS = (1024,)
DEFAULT_EXAMPLES = 24
MAX_NEW_TOKENS = 16
_SEEDS_APART = 1_000_000
_WORDS = Pieces(fewest=180, each=1.3)
"""Words of prose; six facts need some to stand in."""


def load(request: Request) -> list[Task]:
    """The one task, with so many examples for each length; six of them share a document."""
    asked_tasks(request, "facts", ("facts",))
    wanted = asked_examples(request, DEFAULT_EXAMPLES)
    lengths = asked_lengths(request, LENGTHS)
    examples = [example for length in lengths for example in _examples(request, length, wanted)]
    return [Task("facts", "facts", Judging("contains_any", MAX_NEW_TOKENS), tuple(examples))]


def _examples(request: Request, length: int, wanted: int) -> Iterator[Example]:
    number = 0
    while wanted > 0:
        document = _document(request.seed * _SEEDS_APART + number, length, request.count_tokens)
        context = f"{document.text}\n\n"
        for index, question in enumerate(document.questions[:wanted]):
            yield Example(
                f"{length}-{number}-{index}", context, question.text, (question.answer,), facts={"length": length}
            )
        wanted -= len(document.questions)
        number += 1


def _document(seed: int, length: int, count_tokens: Callable[[str], int]) -> Document:
    """The longest document of a seed whose prompts, with their answers, have at most `length` tokens.

    Raises BenchmarkError where six facts do not fit.
    """

    def size(words: int) -> int:
        document = fact_document(seed, words)
        longest = max((question.text for question in document.questions), key=len)
        return count_tokens(f"{document.text}\n\n{longest}") + MAX_NEW_TOKENS

    words = largest_fitting(size, length, _WORDS)
    if words is None:
        raise BenchmarkError(
            f"Six facts and their prose do not fit into {length} tokens; with this model they need at least "
            f"{size(_WORDS.fewest)}."
        )
    return fact_document(seed, words)


FACTS = Benchmark(
    name="facts",
    summary="six facts of six kinds in generated English prose, with a question about each",
    source="Winnow",
    tasks={"facts": "something that the text says once, answered in a few words"},
    load=load,
    lengths=LENGTHS,
)
