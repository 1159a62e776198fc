"""Facts: English prose in which six facts of six kinds are hidden, and a question about each; nothing to download."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from winnow.tasks.benchmark import Benchmark, BenchmarkError, Request
from winnow.tasks.document import Document
from winnow.tasks.example import Example, Judging, Task
from winnow.tasks.facts.documents import fact_document

DEFAULT_LENGTH = 1024
DEFAULT_EXAMPLES = 24
FEWEST_WORDS = 180
"""Words of prose that six facts need to stand in."""
MAX_NEW_TOKENS = 16
_SEEDS_APART = 1_000_000


def load(request: Request) -> list[Task]:
    """The one task, with so many examples for each length; six of them share a document."""
    lengths, wanted = request.lengths or (DEFAULT_LENGTH,), request.examples or DEFAULT_EXAMPLES
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
    least = _tokens(fact_document(seed, FEWEST_WORDS), count_tokens)
    if least > length:
        raise BenchmarkError(f"Six facts and their prose do not fit into {length} tokens; {least} do for this model.")
    low, high = FEWEST_WORDS, max(length, FEWEST_WORDS)
    # Words of prose; a text of more words has at least as many tokens.
    while low < high:
        middle = (low + high + 1) // 2
        if _tokens(fact_document(seed, middle), count_tokens) <= length:
            low = middle
        else:
            high = middle - 1
    return fact_document(seed, low)


def _tokens(document: Document, count_tokens: Callable[[str], int]) -> int:
    longest = max((question.text for question in document.questions), key=len)
    return count_tokens(f"{document.text}\n\n{longest}") + MAX_NEW_TOKENS


FACTS = Benchmark(
    name="facts",
    summary="six facts of six kinds in generated English prose, a question about each",
    source="Winnow",
    tasks={"facts": "what a text says once, asked for in a few words"},
    load=load,
)
