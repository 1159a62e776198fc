"""Chinese text as words."""

from __future__ import annotations

import logging

from winnow.metrics.libraries import library


def cut(text: str) -> list[str]:
    """Words, blanks and punctuation of a Chinese text, in order, as jieba divides them."""
    jieba = library("jieba")
    # Otherwise it tells on stderr how long its dictionary took.
    jieba.setLogLevel(logging.WARNING)
    found: list[str] = jieba.lcut(text)
    return found
