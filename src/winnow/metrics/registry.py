"""Metrics by name."""

from __future__ import annotations

from winnow.errors import closest
from winnow.metrics.babilong import babilong, first_sentence_is_over
from winnow.metrics.base import Metric, MetricError
from winnow.metrics.classification import classification
from winnow.metrics.code_similarity import code_similarity, has_code
from winnow.metrics.contained import all_are_there, any_is_there, contains_all, contains_any
from winnow.metrics.exact import exact_match, is_settled
from winnow.metrics.final_number import final_number
from winnow.metrics.libraries import check_libraries
from winnow.metrics.math_answer import math_answer
from winnow.metrics.named_numbers import count, retrieval, retrieval_zh
from winnow.metrics.rouge import rouge_1, rouge_2, rouge_l, rouge_l_zh
from winnow.metrics.token_f1 import token_f1
from winnow.metrics.token_f1_zh import token_f1_zh

EXACT_MATCH = Metric("exact_match", "right, up to the end of the first sentence or line", exact_match, is_settled)
DEFAULT_METRIC = EXACT_MATCH.name

METRICS = {
    each.name: each
    for each in (
        EXACT_MATCH,
        Metric("contains_all", "share of the right answers that the answer contains", contains_all, all_are_there),
        Metric("contains_any", "the answer contains one of the right answers", contains_any, any_is_there),
        Metric("token_f1", "words shared with a right answer", token_f1),
        Metric("token_f1_zh", "Chinese words shared with a right answer", token_f1_zh, libraries=("jieba",)),
        Metric("rouge_1", "words shared with a right summary", rouge_1, libraries=("rouge",)),
        Metric("rouge_2", "pairs of words shared with a right summary", rouge_2, libraries=("rouge",)),
        Metric("rouge_l", "longest common sequence of words with a right summary", rouge_l, libraries=("rouge",)),
        Metric(
            "rouge_l_zh",
            "longest common sequence of Chinese words with a right summary",
            rouge_l_zh,
            libraries=("rouge", "jieba"),
        ),
        Metric("classification", "share of the right class among the classes that the answer names", classification),
        Metric("babilong", "the first sentence names the right label and no other", babilong, first_sentence_is_over),
        Metric("retrieval", "share of the numbers in the answer that name the right paragraph", retrieval),
        Metric("retrieval_zh", "share of the numbers in the answer that name the right paragraph (段落)", retrieval_zh),
        Metric("count", "share of the numbers in the answer that are right", count),
        Metric(
            "code_similarity",
            "similarity of the first line of code",
            code_similarity,
            has_code,
            libraries=("rapidfuzz",),
        ),
        Metric("final_number", "the stated result is the right number (GSM8K)", final_number),
        Metric(
            "math_answer",
            "the stated result equals the right expression (MATH)",
            math_answer,
            libraries=("math_verify",),
        ),
    )
}


def metrics() -> list[Metric]:
    """All metrics."""
    return list(METRICS.values())


def metric(name: str) -> Metric:
    """The metric of a name. Raises MetricError, with what there is; or where a library that it needs is missing."""
    try:
        found = METRICS[name]
    except KeyError:
        raise MetricError(f"There is no metric {name!r}: {closest(name, METRICS)}") from None
    check_libraries(found.libraries)
    return found
