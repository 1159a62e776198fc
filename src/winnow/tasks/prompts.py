"""Text of prompts."""

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


# Questions of the bundled model's kinds, and how the statement that answers each begins.
_LEADS = (
    (r"what is the value of variable (\w+)", r"variable \1"),
    (r"what is the favorite \w+ of the (\w+) one between (\w+) and (\w+)", r"between \2 and \3, the \1 one"),
    (r"what is (the (?:favorite )?\w+ of (?:the )?\w+)", r"\1"),
)


def lead_in(question: str) -> str:
    """The beginning of the answer: "What is the favorite fruit of Alice?" -> "the favorite fruit of Alice".

    Empty for questions of other kinds.
    """
    asked = question.strip().rstrip("?").strip()
    for pattern, lead in _LEADS:
        if match := re.fullmatch(pattern, asked, flags=re.IGNORECASE):
            return match.expand(lead)
    return ""


def plain_prompt(document: str, question: str) -> str:
    """The prompt of a model without a chat template: document and question, and a place for the answer."""
    return f"{document}\n\nQuestion: {question}\nAnswer:"


def format_prompt(document: str, question: str) -> str:
    """The prompt of the bundled model: document, question and the beginning of the answer.

    With that beginning the last tokens of the prompt are those that look the answer up, as they are in a larger
    model that plans ahead. Methods that watch the last tokens would otherwise see a question being copied. It
    stops before the word that leads to the value: the first generated token comes from the dense prefill, so a value
    right after the prompt would be found whatever a method evicts.
    """
    return f"{plain_prompt(document, question)} {lead_in(question)}".rstrip()


def normalize(text: str) -> str:
    """Lower-case a text and keep only its words, separated by single blanks."""
    return " ".join(re.findall(r"\w+", text.lower()))
