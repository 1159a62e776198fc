"""Values of LongBench's and RULER's own functions.

Those of LongBench are by `metrics.py` of THUDM/LongBench (2024), over rouge 1.0.1, jieba 0.42.1 and fuzzywuzzy 0.18.0
with Levenshtein 0.27.5; ROUGE-1 and -2 are by rouge alone. Those of RULER are worked by hand from its definitions.
"""

from __future__ import annotations

import pytest

from support.judged import worth
from winnow.metrics import Expected, MetricError, metric


@pytest.mark.parametrize(
    ("answer", "right", "value"),
    [
        ("The mayor of Tresk, Judith Marsh.", "Judith Marsh", 0.5714285714285715),
        ("A ferry (the Amalia) was built in 1823.", "the ferry Amalia", 0.5),
        ("paris", "Paris, France", 0.6666666666666666),
        ("state-of-the-art", "state of the art", 0),
        ("dog dog dog", "dog dog cat", 0.6666666666666666),
        ("", "Paris", 0),
        ("The.", "a", 0),
    ],
)
def test_token_f1(answer: str, right: str, value: float) -> None:
    assert worth("token_f1", answer, right) == value


@pytest.mark.parametrize(
    ("answer", "right", "values"),
    [
        (
            "The old ferry was sold. Nobody knows who bought it.",
            "The ferry was sold in May. A merchant bought it.",
            (0.5999999950000001, 0.3333333283333334, 0.5999999950000001),
        ),
        ("the cat sat on the mat", "the cat sat on the mat", (0.999999995, 0.999999995, 0.999999995)),
        ("a a a b", "a b b", (0.999999995, 0.4999999950000001, 0.999999995)),
        (
            "It rained 3.5 mm on Monday. The road flooded.",
            "On Monday it rained 3.5 mm. The road was flooded.",
            (0.7619047569160999, 0.42105262659279785, 0.7619047569160999),
        ),
        ("", "word", (0, 0, 0)),
        ("...", "word", (0, 0, 0)),
        ("word", "...", (0, 0, 0)),
        ("one", "two", (0, 0, 0)),
    ],
)
def test_rouge(answer: str, right: str, values: tuple[float, float, float]) -> None:
    assert tuple(worth(name, answer, right) for name in ("rouge_1", "rouge_2", "rouge_l")) == values


def test_rouge_of_a_sentence_longer_than_python_calls_deep() -> None:
    assert worth("rouge_l", "so " * 1500, "so " * 20) > 0.99


@pytest.mark.parametrize(
    ("answer", "right", "f1", "rouge"),
    [
        ("答案是北京大学。", "北京大学", 0.5, 0.39999999680000003),
        ("《红楼梦》的作者是曹雪芹。", "曹雪芹", 0.2857142857142857, 0.2222222202469136),
        ("小明喜欢苹果，小红喜欢香蕉。", "小红喜欢香蕉和苹果", 0.7272727272727272, 0.499999995138889),
        ("ＡＢＣ 2019年3月", "2019年3月", 0.7272727272727273, 0.7272727226446282),
        ("", "北京", 0, 0),
    ],
)
def test_chinese(answer: str, right: str, f1: float, rouge: float) -> None:
    assert worth("token_f1_zh", answer, right) == f1
    assert worth("rouge_l_zh", answer, right) == rouge


@pytest.mark.parametrize(
    ("answer", "right", "value"),
    [
        ("\n\n# comment\n    return total / count\nmore", "    return total / count", 1),
        ("```python\nfor each in rows:\n", "for row in rows:", 0.79),
        ("int x = 0; // start\nint y = 1;\n", "int y = 2;", 0.9),
        ("def area(self, width, height):", "def area(self, radius):", 0.72),
        ("return sum(v for v in values)", "if (index < items.size()) { next = items.get(index); }", 0.27),
        ("# nothing", "x", 0),
        ("", "return x", 0),
    ],
)
def test_code_similarity(answer: str, right: str, value: float) -> None:
    assert worth("code_similarity", answer, right) == value


def test_a_line_of_code_is_settled_at_its_end() -> None:
    settled = metric("code_similarity").settled
    assert settled("# so\nx = 1\n", Expected(("x = 2",)))
    assert not settled("\n# so\nx = 1", Expected(("x = 2",)))


@pytest.mark.parametrize(
    ("name", "answer", "right", "value"),
    [
        ("retrieval", "Paragraph 7", "Paragraph 7", 1),
        ("retrieval", "The abstract is from Paragraph 3 or 7.", "Paragraph 7", 0.5),
        ("retrieval", "7 7 07 17", "Paragraph 7", 0.5),
        ("retrieval", "none", "Paragraph 7", 0),
        ("retrieval_zh", "段落12", "段落12", 1),
        ("retrieval_zh", "段落1或段落12", "段落12", 0.5),
        ("count", "There are 12 unique paragraphs.", "12", 1),
        ("count", "12 of 30", "12", 0.5),
        ("count", "twelve", "12", 0),
    ],
)
def test_named_numbers(name: str, answer: str, right: str, value: float) -> None:
    assert worth(name, answer, right) == value


@pytest.mark.parametrize(
    ("answer", "right", "value"),
    [
        ("City", "City", 1),
        ("City or State", "City", 0.5),
        ("Other location", "Other location", 1),
        ("Other location, City", "Other location", 0.5),
        ("Other location", "Location", 0),
        ("city", "City", 0),
    ],
)
def test_classification(answer: str, right: str, value: float) -> None:
    choices = ("City", "State", "Other location", "Location", "Date")
    assert worth("classification", answer, right, choices=choices) == value


@pytest.mark.parametrize(
    ("answer", "all_of_them", "any_of_them"),
    [("The codes are 12 and b.", 2 / 3, 1), ("12, B, see", 1, 1), ("none", 0, 0), ("", 0, 0)],
)
def test_contained(answer: str, all_of_them: float, any_of_them: float) -> None:
    assert worth("contains_all", answer, "12", "B", "SEE") == all_of_them
    assert worth("contains_any", answer, "12", "B", "SEE") == any_of_them


@pytest.mark.parametrize("name", ["retrieval", "retrieval_zh", "count", "final_number", "classification"])
def test_an_example_that_cannot_be_judged(name: str) -> None:
    with pytest.raises(MetricError, match="right answer"):
        worth(name, "7", "seven", choices=("eight",))


def test_a_class_within_the_right_one_is_not_another() -> None:
    """As the judges of LongBench have it: a name that is part of the right one is not counted as named."""
    choices = ("Number", "Number of something", "Date")
    assert worth("classification", "Number of something", "Number of something", choices=choices) == 1
    assert worth("classification", "Number", "Number", choices=choices) == 1
    assert worth("classification", "Number of something", "Number", choices=choices) == 0.5


def test_latin_punctuation_in_chinese_answers_does_not_count() -> None:
    assert worth("token_f1_zh", "北京, 上海!", "北京，上海！") == 1
    assert worth("token_f1_zh", "北京.", "北京") == 1
