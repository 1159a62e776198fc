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

EXACT_MATCH = Metric("exact_match", "the answer, up to the end of a sentence, is a right one", exact_match, is_settled)
DEFAULT_METRIC = EXACT_MATCH.name

METRICS = {
    each.name: each
    for each in (
        EXACT_MATCH,
        Metric("contains_all", "share of the right answers that the answer holds", contains_all, all_are_there),
        Metric("contains_any", "one of the right answers is in the answer", contains_any, any_is_there),
        Metric("token_f1", "words shared with a right answer", token_f1),
        Metric("token_f1_zh", "Chinese words shared with a right answer", token_f1_zh, libraries=("jieba",)),
        Metric("rouge_1", "words shared with a right summary", rouge_1, libraries=("rouge",)),
        Metric("rouge_2", "pairs of words shared with a right summary", rouge_2, libraries=("rouge",)),
        Metric("rouge_l", "words in the order of a right summary", rouge_l, libraries=("rouge",)),
        Metric("rouge_l_zh", "Chinese words in the order of a right summary", rouge_l_zh, libraries=("rouge", "jieba")),
        Metric("classification", "the right class among those that the answer names", classification),
        Metric("babilong", "the right label alone, in the first sentence", babilong, first_sentence_is_over),
        Metric("retrieval", "the right paragraph among the numbers in the answer", retrieval),
        Metric("retrieval_zh", "the right paragraph (段落) among the numbers in the answer", retrieval_zh),
        Metric("count", "the right number among those in the answer", count),
        Metric(
            "code_similarity", "likeness of the first line of code", code_similarity, has_code, libraries=("rapidfuzz",)
        ),
        Metric("final_number", "the number that a worked answer ends with (GSM8K)", final_number),
        Metric("math_answer", "an expression equal to the right one (MATH)", math_answer, libraries=("math_verify",)),
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
