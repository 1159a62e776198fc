"""The importance of each head: tables with their origin, files of published tables, comparison."""

from winnow.errors import HeadScoresError
from winnow.heads.centers import QueryCenters
from winnow.heads.compare import rank_correlation, top_heads, top_overlap
from winnow.heads.curves import BudgetCurves
from winnow.heads.readers import read_cokv, read_duo, read_headkv, read_scores, read_tables
from winnow.heads.scores import HeadScores
from winnow.heads.summary import Summary, TopHead, summarize

__all__ = [
    "BudgetCurves",
    "HeadScores",
    "HeadScoresError",
    "QueryCenters",
    "Summary",
    "TopHead",
    "rank_correlation",
    "read_cokv",
    "read_duo",
    "read_headkv",
    "read_scores",
    "read_tables",
    "summarize",
    "top_heads",
    "top_overlap",
]
