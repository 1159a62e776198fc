"""BABILong (Kuratov et al. 2024, arXiv 2406.10149): bAbI's facts among other text, questions that join them."""

from winnow.tasks.babilong.benchmark import BABILONG

__all__ = ["BABILONG"]
