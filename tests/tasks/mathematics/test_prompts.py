"""Prompts of mathematical problems."""

from __future__ import annotations

from winnow.metrics import Expected, metric
from winnow.tasks.mathematics.prompts import EIGHT_EXAMPLES, FIVE_EXAMPLES, FOUR_EXAMPLES, REASONING, Problem, Prompt

PROBLEM = Problem("1", "What is {x} in 2{x} = 4?", "2", {})
# Results of Wei et al.'s eight examples.
RESULTS = ("6", "5", "39", "8", "9", "29", "33", "8")


def answers(prompt: Prompt, mark: str) -> list[str]:
    """Worked answers of a prompt's examples."""
    return [each.split(mark)[1] for each in prompt.context.split("\n\n" if mark == "\nA:" else "\n\nProblem:") if each]


def test_worked_examples_state_their_results() -> None:
    for answer, result in zip(answers(EIGHT_EXAMPLES, "\nA:"), RESULTS, strict=True):
        assert metric("final_number").score(answer, Expected((result,))) == 1.0
    assert answers(FIVE_EXAMPLES, "\nA:") == answers(EIGHT_EXAMPLES, "\nA:")[:5]
    results = ("[2,5)", "24", "16", r"-\frac{2}{3}")
    for answer, result in zip(answers(FOUR_EXAMPLES, "Solution:"), results, strict=True):
        assert metric("math_answer").score(answer, Expected((result,))) == 1.0


def test_the_problem_follows_the_examples_as_in_lm_evaluation_harness() -> None:
    asked = EIGHT_EXAMPLES.example(PROBLEM)
    assert asked.context.startswith("Q: There are 15 trees in the grove.")
    assert asked.context.endswith(
        "She has 23 - 15 dollars left. 23 - 15 is 8. The answer is 8.\n\n".replace("She", "So she")
    )
    assert asked.question == "Q: What is {x} in 2{x} = 4?\nA:"
    asked = FOUR_EXAMPLES.example(PROBLEM)
    assert asked.context.count("Problem:\n") == asked.context.count("\n\nSolution: ") == 4
    assert asked.context.endswith("I hope it is correct.\n\n")
    assert asked.question == "Problem:\nWhat is {x} in 2{x} = 4?\n\nSolution:"


def test_the_wish_to_reason_stands_before_the_problem() -> None:
    asked = REASONING.example(PROBLEM)
    assert asked.context == "Please reason step by step, and put your final answer within \\boxed{}.\n\n"
    assert asked.question == PROBLEM.text
    assert asked.answers == ("2",)
