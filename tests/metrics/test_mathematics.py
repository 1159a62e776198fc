"""Results of worked answers, judged as a reader of them would."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from support.judged import worth
from winnow.metrics.math_answer import _plain


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("She has 3 + 4 = 7 left.\n#### 7", "She sells 2.\n#### 7"),
        ("#### 1,250", "1250"),
        ("The answer is $18.", "18"),
        ("So the answer is: **72** apples, in 3 days.", "72"),
        ("The answer is 5 + 3 = 8.", "8"),
        ("The answer is 10 dollars, since x = 3.", "10"),
        (r"Thus \boxed{x = 1{,}250}.", "1,250"),
        (r"The answer is $18\,000$", "18000"),
        (r"#### 1\;250\ 000", "1250000"),
        ("#### 1\u202f250\u2009000", "1250000"),
        (r"\boxed{\$18.00}", "18"),
        ("It costs -$5.50 in all", "-5.5"),
        ("He runs 3-5 miles, so 4 miles", "4"),
        ("The answer is 8.\n\nQuestion: How many?\nAnswer: The answer is 9.", "8"),
        ("The answer is:\n\n42km", "42"),
        ("The answer is unclear. 7", "7"),
        ("- 5 apples", "5"),
    ],
)
def test_a_number_that_is_right(answer: str, right: str) -> None:
    assert worth("final_number", answer, right) == 1


@pytest.mark.parametrize(
    ("answer", "right"),
    [("", "5"), ("five", "5"), ("#### 50", "5"), ("5, no, 6", "5"), ("1,2345", "12345"), ("-5", "5"), ("v5", "5")],
)
def test_a_number_that_is_wrong(answer: str, right: str) -> None:
    assert worth("final_number", answer, right) == 0


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        (r"Hence $\boxed{\frac{1}{2}}$.", r"We see that it is \boxed{\frac12}."),
        (r"\boxed{0.5}", r"\frac{1}{2}"),
        (r"First \boxed{3}, but then \boxed{\frac{2}{\sqrt{2}}}", r"\sqrt2"),
        ("The final answer is $x^2+1$. I hope it is correct.", "1 + x^2"),
        (r"\boxed{\text{Tuesday}}", "Tuesday"),
        (r"\boxed{\left(3, \dfrac{\pi}{2}\right)}", r"\left( 3, \frac{\pi}{2} \right)"),
        (r"\boxed{18\%}", "18"),
        (r"\boxed 5", "5"),
        ("so 5", "5"),
        (r"#### 1{,}250", "1250"),
        ("the answer is 5.\n\nProblem: What is 2 + 2?\nthe answer is 4.", "5"),
    ],
)
def test_an_expression_that_is_right(answer: str, right: str) -> None:
    assert worth("math_answer", answer, right) == 1


@pytest.mark.parametrize(
    ("answer", "right"),
    [("", "5"), (r"\boxed{}", "5"), (r"\boxed{(3,4)}", "(4,3)"), (r"\boxed{\frac{1}{3}}", "0.3"), (r"\boxed{5", "6")],
)
def test_an_expression_that_is_wrong(answer: str, right: str) -> None:
    assert worth("math_answer", answer, right) == 0


def test_expressions_are_compared_in_any_thread() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(worth, "math_answer", r"\boxed{0.25}", r"\frac14").result() == 1


@pytest.mark.parametrize("name", ["final_number", "math_answer"])
def test_the_last_result_that_is_stated_counts(name: str) -> None:
    assert worth(name, "The answer is 3. No, wait: the answer is 4.", "4") == 1
    assert worth(name, "The answer is 3.\n#### 4", "4") == 1
    assert worth(name, "#### 4\nThe answer is", "4") == 1


def test_the_result_of_an_equation_in_a_box_is_its_last_number() -> None:
    assert worth("final_number", r"So it is \boxed{2 + 3 = 5}.", "5") == 1
    assert worth("final_number", r"So it is \boxed{2 + 3 = 5}.", "2") == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"\dfrac{1}{2}", r"\frac12"), (r"\tfrac12", r"\frac{1}{2}"), (r"\sqrt2", r"\sqrt{2}"),
        (r"\left( 1,\! 2 \right)", "(1,2)"), (r"\$5\%", "5"), (r"\text{ten} \mbox{men}", "tenmen"),
        (r"45^\circ", "45"), (r"45^{\circ}", "45"), (r"45\degree", "45"), ("1{,}250", "1250"), ("1,250,000", "1250000"),
        ("x = 5 .", "x=5"),
    ],
)  # fmt: skip
def test_spellings_that_mean_the_same(one: str, other: str) -> None:
    """By themselves: math-verify would find some of them equal, and none within words."""
    assert _plain(one) == _plain(other)


@pytest.mark.parametrize("answer", ["It costs -$5.50", "It costs $-5.50", "It costs −$5.50", r"\boxed{\$-5.5}"])
def test_a_minus_before_or_behind_a_currency(answer: str) -> None:
    assert worth("final_number", answer, "-5.5") == 1
    assert worth("final_number", answer, "5.5") == 0


def test_only_the_line_of_a_stated_result_counts() -> None:
    assert worth("math_answer", "The answer is ten men\nas always, and never 7.", "ten men") == 1
    assert worth("math_answer", "The answer is ten men\nas always, and never 7.", "7") == 0
