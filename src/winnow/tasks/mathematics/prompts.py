"""Prompts of mathematical problems: with a wish to reason, or with worked examples before."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from winnow.tasks.example import Example, Fact


class Problem(NamedTuple):
    """A problem and its right answer."""

    name: str
    text: str
    answer: str
    facts: dict[str, Fact]


class Prompt(NamedTuple):
    """A form of prompts."""

    context: str
    question: str
    """With a place for the {problem}."""

    def example(self, problem: Problem) -> Example:
        """The problem in this form."""
        question = self.question.replace("{problem}", problem.text)
        return Example(problem.name, self.context, question, (problem.answer,), facts=problem.facts)


def _examples(file: str, start: str, count: int) -> str:
    """The first worked examples of a file, each of which begins with `start`."""
    found = Path(__file__).with_name(file).read_text(encoding="utf-8").split(start)[1:]
    return "".join(start + each for each in found[:count])


REASONING = Prompt("Please reason step by step, and put your final answer within \\boxed{}.\n\n", "{problem}")
"""The wish that Qwen2.5-Math is evaluated with (Yang et al. 2024, arXiv 2409.12122), in front of the problem."""

EIGHT_EXAMPLES = Prompt(_examples("eight_examples.txt", "Q: ", 8), "Q: {problem}\nA:")
"""Chain of thought (Wei et al. 2022, arXiv 2201.11903, table 20), spaced as lm-evaluation-harness' task gsm8k_cot."""

FIVE_EXAMPLES = Prompt(_examples("eight_examples.txt", "Q: ", 5), "Q: {problem}\nA:")
"""The first five of them."""

FOUR_EXAMPLES = Prompt(_examples("four_examples.txt", "Problem:\n", 4), "Problem:\n{problem}\n\nSolution:")
"""Minerva's (Lewkowycz et al. 2022, arXiv 2206.14858, appendix D.2), spaced as in lm-evaluation-harness."""
