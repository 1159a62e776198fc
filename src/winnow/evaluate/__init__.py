"""Answering questions under a method, one at a time or as a grid of methods and budgets."""

from winnow.evaluate.answering import Answer
from winnow.evaluate.generation import generate
from winnow.evaluate.runner import Score, Trial, evaluate, grid, score_trials

__all__ = ["Answer", "Score", "Trial", "evaluate", "generate", "grid", "score_trials"]
