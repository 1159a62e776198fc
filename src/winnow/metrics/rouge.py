"""Overlap with a summary, by ROUGE (Lin 2004) as the package `rouge` computes it; LongBench's rouge_score."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from winnow.metrics.chinese import cut
from winnow.metrics.libraries import library
from winnow.metrics.several import best_of_several

_DEPTH = Lock()


@best_of_several
def rouge_1(answer: str, right: str) -> float:
    """F1 over the words that the answer and the right one use."""
    return _f("rouge-1", answer, right)


@best_of_several
def rouge_2(answer: str, right: str) -> float:
    """F1 over pairs of words in a row."""
    return _f("rouge-2", answer, right)


@best_of_several
def rouge_l(answer: str, right: str) -> float:
    """F1 over longest common subsequences, sentence by sentence."""
    return _f("rouge-l", answer, right)


@best_of_several
def rouge_l_zh(answer: str, right: str) -> float:
    """`rouge_l` of a Chinese text, over jieba's words (LongBench's rouge_zh_score)."""
    return _f("rouge-l", " ".join(cut(answer)), " ".join(cut(right)))


def _f(kind: str, answer: str, right: str) -> float:
    """F1 of a kind that the package knows; 0 where one of the texts has no words."""
    if not (_has_words(answer) and _has_words(right)):
        return 0.0
    # The package walks back through a sentence word by word, each in a call of its own.
    with _recursion(len(answer.split()) + len(right.split())):
        found = library("rouge").Rouge(metrics=[kind]).get_scores([answer], [right], avg=True)
    # It adds 1e-8 to a denominator, so that equal texts fall short of 1 by as much.
    return float(found[kind]["f"])


def _has_words(text: str) -> bool:
    return bool(text.replace(".", ""))


@contextmanager
def _recursion(calls: int) -> Iterator[None]:
    """Room for so many calls within each other."""
    with _DEPTH:
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(before + calls)
        try:
            yield
        finally:
            sys.setrecursionlimit(before)
