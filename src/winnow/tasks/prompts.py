"""Text of prompts and the comparison of answers."""

from __future__ import annotations

import re

from winnow.tasks import vocabulary as v

_PROPER = frozenset(v.NAMES) | frozenset(v.DAYS) | frozenset(v.ATTRIBUTE_VALUES["city"])


def join_words(words: list[str]) -> str:
    """Join words by blanks, with no blank before a punctuation mark."""
    return re.sub(r" ([.,?:])", r"\1", " ".join(words))


def to_text(words: list[str]) -> str:
    """Write words as a sentence with capitals."""
    text = join_words([word.capitalize() if word in _PROPER else word for word in words])
    return text[:1].upper() + text[1:]


def format_prompt(document: str, question: str) -> str:
    """Build the prompt that the bundled model is trained to answer."""
    return f"{document}\n\nQuestion: {question}\nAnswer:"


def normalise(text: str) -> str:
    """Lower-case a text and keep only its words, separated by single blanks."""
    return " ".join(re.findall(r"\w+", text.lower()))


def exact_match(generated: str, answer: str) -> bool:
    """Tell whether a generated answer is the right one, word for word.

    Case, blanks and punctuation do not count. The generated text ends at its
    first full stop or line break, as the answer of a chatty model would.
    """
    ended = re.split(r"[.\n]", generated.strip(), maxsplit=1)[0]
    return bool(ended) and normalise(ended) == normalise(answer)
