"""Text: what follows in a text, in the eyes of the full cache and of a compressed one; nothing needs labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from winnow.errors import FileError
from winnow.files import read_text
from winnow.tasks.benchmark import Benchmark, BenchmarkError, Request, asked_tasks
from winnow.tasks.example import Example, Judging, Task
from winnow.tasks.haystack.prose import write_prose
from winnow.tasks.texts.cutting import WORD, cut, last_start, word_after

LENGTHS = (1024,)
DEFAULT_EXAMPLES = 16
CONTINUATION = 128
"""Tokens that are judged."""
SUFFIXES = (".txt", ".md", ".rst", ".text")
"""Files of a folder that are read; a file that is named itself may end in anything."""
DATA = "a text file, or a folder of .txt and .md files"

_SUMMARY = "the next 128 tokens of a text, behind contexts at regular places"


class _Document(NamedTuple):
    name: str
    text: str


def _load(request: Request) -> list[Task]:
    asked_tasks(request, "text", ("text",))
    lengths = request.lengths or LENGTHS
    wanted = DEFAULT_EXAMPLES if request.examples is None else request.examples
    if min(lengths) < 1:
        raise BenchmarkError(f"text needs contexts of at least one token, not {min(lengths)}.")
    examples = [example for length in lengths for example in _examples(request, length, wanted)]
    return [Task("text", "text", Judging("fidelity", CONTINUATION, chat_template=False), tuple(examples))]


def _examples(request: Request, length: int, wanted: int) -> Iterator[Example]:
    # A piece begins with a whole word, a little behind its place; a character is a token at most.
    needed = length + CONTINUATION + WORD
    documents = _long_enough(_documents(request, needed * wanted), needed, request.count_tokens)
    for number, (document, start) in enumerate(_places(documents, wanted), start=1):
        text = document.text
        middle = cut(text, start, length, request.count_tokens)
        end = cut(text, middle, CONTINUATION, request.count_tokens)
        yield Example(
            name=f"{length}-{number}",
            context=text[start:middle],
            question="",
            answers=(text[middle:end],),
            facts={"length": length, "document": document.name, "place": round(start / len(text), 4)},
        )


def _documents(request: Request, tokens: int) -> list[_Document]:
    if request.data is not None:
        return _files(request.data)
    # A word has a token at least.
    sentences, words = [], 0
    for sentence in write_prose(request.seed):
        if words >= tokens:
            break
        sentences.append(sentence)
        words += len(sentence.split())
    return [_Document("prose", " ".join(sentences))]


def _files(path: Path) -> list[_Document]:
    if not path.exists():
        raise BenchmarkError(f"There is no {path}: give --data with {DATA}.")
    files = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES) if path.is_dir() else [path]
    try:
        texts = [(file.relative_to(path).as_posix() if path.is_dir() else file.name, read_text(file)) for file in files]
    except FileError as problem:
        raise BenchmarkError(f"{problem} Give --data with {DATA}.") from None
    documents = [_Document(name, text.strip()) for name, text in texts if text.strip()]
    if not documents:
        raise BenchmarkError(f"{path} has no text: give --data with {DATA}.")
    return documents


def _long_enough(
    documents: Sequence[_Document], tokens: int, count_tokens: Callable[[str], int]
) -> list[tuple[_Document, int]]:
    """Documents of more than so many tokens, each with the last place behind which there are so many."""
    found = [(document, last_start(document.text, tokens, count_tokens)) for document in documents]
    long = [(document, place) for document, place in found if place is not None]
    if not long:
        name, text = max(documents, key=lambda document: len(document.text))
        raise BenchmarkError(
            f"{name} has {count_tokens(text)} tokens, but {tokens} are needed: give a longer text or smaller --lengths."
        )
    return long


def _places(documents: Sequence[tuple[_Document, int]], wanted: int) -> Iterator[tuple[_Document, int]]:
    """So many places at regular distances, as if the documents were one."""
    whole = sum(last for _, last in documents)
    for number in range(wanted):
        place = round(number * whole / max(1, wanted - 1))
        for document, last in documents:
            if place <= last:
                yield document, word_after(document.text, place)
                break
            place -= last


TEXT = Benchmark(
    name="text",
    summary="fidelity on any text: likelihood, divergence from the full cache, and agreement with it",
    source="Winnow",
    tasks={"text": _SUMMARY},
    load=_load,
    lengths=LENGTHS,
    data=f"{DATA}; without one, generated prose",
)
