"""All runs, examples x lengths x depths, with the prompt of each."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, NamedTuple

from winnow.estimate.errors import NeedleError
from winnow.estimate.journal import fingerprint
from winnow.estimate.needle.examples import NeedleExample
from winnow.estimate.needle.haystack import Haystack, count_words, insertion_point
from winnow.estimate.needle.prompt import Prompt, build_prompt, require_offsets
from winnow.estimate.needle.settings import Settings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Tokens by which a text may grow where a needle is put into it.
_SLACK = 4
# Where less than half of so many tokens can be filled, it is not for want of room for one more sentence.
_LONG_SENTENCE = 400
# A haystack this close to the wanted length is long enough.
_ENOUGH = 0.98


class Cell(NamedTuple):
    """One run."""

    example: int
    length: int
    depth: float


class Place(NamedTuple):
    """A needle between two sentences of its haystack: a prompt that is not built yet."""

    example: int
    lengths: tuple[int, ...]
    """Those that leave room for this haystack and no more; several where none has room for one more sentence."""
    before: int
    """Sentences before the needle."""
    depths: tuple[float, ...]
    """Those that come to this boundary, as all do in an empty haystack."""
    tokens: int
    """Tokens of the prompt; another place in the same haystack may differ by a few."""

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The runs that the prompt is."""
        return tuple(Cell(self.example, length, depth) for length in self.lengths for depth in self.depths)


class NeedleJob(NamedTuple):
    """A prompt, and the runs that it is."""

    prompt: Prompt
    example: NeedleExample
    cells: tuple[Cell, ...]


class NeedlePlan:
    """All runs of a configuration, with their prompts tokenized on demand."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        settings: Settings,
        examples: Sequence[NeedleExample],
        haystack: Haystack,
    ) -> None:
        """Cuts the haystacks.

        Raises NeedleError where the tokenizer gives no offsets or does not know a needle, where the haystack is too
        short for a length, and without any example, length or depth.
        """
        _check_runs(len(examples), len(settings.lengths), len(settings.depths))
        require_offsets(tokenizer)
        self.tokenizer = tokenizer
        self.settings = settings
        self.examples = tuple(examples)
        self._sentences = {
            (index, length): cut(tokenizer, example, haystack, length, settings)
            for index, example in enumerate(examples)
            for length in settings.lengths
        }

    @property
    def cells(self) -> list[Cell]:
        """Every run, by example, length and depth."""
        return [Cell(*key, depth) for key in self._sentences for depth in self.settings.depths]

    @cached_property
    def places(self) -> list[Place]:
        """Every different prompt once, in the order in which they are run: a longest one first.

        So what does not fit into memory, and how long all will take, is known at once. After that examples, lengths
        and depths take turns: wherever the runs stop, those made are a fair sample of all.
        """
        of_one_text: dict[tuple[int, tuple[str, ...]], list[int]] = {}
        for (example, length), sentences in self._sentences.items():
            of_one_text.setdefault((example, tuple(sentences)), []).append(length)
        keys = [(example, tuple(lengths)) for (example, _), lengths in of_one_text.items()]
        longest_first = sorted(keys, key=lambda key: (key[0], -key[1][0]))
        waiting = [deque(_turned(self._places_in(*key), turn)) for turn, key in enumerate(longest_first)]
        found = []
        while any(waiting):
            found += [places.popleft() for places in waiting if places]
        return found

    def _places_in(self, example: int, lengths: tuple[int, ...]) -> list[Place]:
        sentences = self._sentences[example, lengths[0]]
        at: dict[int, list[float]] = {}
        for depth in self.settings.depths:
            at.setdefault(insertion_point(sentences, depth), []).append(depth)
        tokens = len(build_prompt(self.tokenizer, self.examples[example], sentences, 0, self.settings.style).tokens)
        return [Place(example, lengths, before, tuple(depths), tokens) for before, depths in at.items()]

    def job(self, place: Place) -> NeedleJob:
        """The prompt of a place."""
        example = self.examples[place.example]
        sentences = self._sentences[place.example, place.lengths[0]]
        return NeedleJob(
            build_prompt(self.tokenizer, example, sentences, place.before, self.settings.style), example, place.cells
        )

    def config(self) -> dict[str, object]:
        """Everything that results depend on besides the model, as plain values for a journal."""
        settings = self.settings
        return {
            "kind": str(settings.kind),
            "seed": settings.seed,
            "lengths": list(settings.lengths),
            "depths": list(settings.depths),
            "answer_tokens": settings.max_new_tokens,
            "examples": fingerprint([[e.needle, e.span, e.question, e.answer] for e in self.examples]),
            "haystack": fingerprint([list(sentences) for sentences in self._sentences.values()]),
            **settings.style.named_facts(),
        }

    def asked(self) -> dict[str, object]:
        """The same for the settings of a table, with the number of examples."""
        config = self.config()
        hashes = {f"{name}_hash": config.pop(name) for name in ("examples", "haystack")}
        return {**config, "examples": len(self.examples), **hashes}


def _turned(places: list[Place], turn: int) -> list[Place]:
    """The same from another one on, so that the first of several lists are at different depths."""
    start = turn % len(places)
    return places[start:] + places[:start]


def _check_runs(examples: int, lengths: int, depths: int) -> None:
    if not examples * lengths * depths:
        raise NeedleError(
            f"{examples} examples at {lengths} lengths and {depths} depths give no runs, so no head would have a "
            "score: give at least one of each."
        )


def cut(
    tokenizer: PreTrainedTokenizerBase, example: NeedleExample, haystack: Haystack, length: int, settings: Settings
) -> list[str]:
    """The whole sentences with which prompt and answer come closest to `length` tokens from below.

    Raises NeedleError where the haystack has not as many.
    """
    bare = len(build_prompt(tokenizer, example, [], 0, settings.style).tokens)
    room = length - bare - settings.max_new_tokens - _SLACK
    if room <= 0:
        return []
    sentences = list(haystack.sentences(room, example.avoid))
    ends = list(accumulate(len(sentence) + 1 for sentence in sentences))
    offsets = tokenizer(" ".join(sentences), add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    within = offsets[room][0] if len(offsets) > room else ends[-1]
    chosen = sentences[: sum(1 for _ in takewhile(lambda end: end <= within, ends))]
    _check_filled(sentences, chosen, len(offsets), room, length)
    return chosen


def _check_filled(sentences: list[str], chosen: list[str], tokens: int, room: int, length: int) -> None:
    """sentences: what the haystack gave, of so many tokens. chosen: what goes into the room of a prompt of `length`."""
    exhausted = len(chosen) == len(sentences) and sum(map(count_words, sentences)) < room
    if exhausted and tokens < _ENOUGH * room:
        raise NeedleError(
            f"The haystack is too short: it has {tokens:,} tokens, but a prompt of {length:,} needs {room:,} of it. "
            "Give a longer text or shorter --lengths, or repeat the text with --repeat."
        )
    if (
        len(chosen) < len(sentences)
        and room >= _LONG_SENTENCE
        and tokens * _length(chosen) < room * _length(sentences) / 2
    ):
        raise NeedleError(
            f"Most of a prompt of {length:,} tokens would stay empty, because sentence {len(chosen) + 1} of the "
            "haystack is too long for it: give a text with full stops or empty lines between its sentences."
        )


def _length(sentences: list[str]) -> int:
    return sum(len(sentence) + 1 for sentence in sentences)
