"""RULER (Hsieh et al. 2024, arXiv 2404.06654): thirteen generated tasks of any length."""

from winnow.tasks.ruler.benchmark import RULER

__all__ = ["RULER"]
