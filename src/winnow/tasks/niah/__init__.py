"""Needles in a haystack, by length and depth: one, several, or a reasoning pair."""

from winnow.tasks.niah.benchmark import NIAH

__all__ = ["NIAH"]
