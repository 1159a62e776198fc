"""Results as pictures (needs the extra "plot")."""

from winnow.report.accuracy import Line, draw_accuracy
from winnow.report.costs import Cost, draw_costs
from winnow.report.diagnosis import Profile, draw_profiles
from winnow.report.heatmap import HeadMap, draw_heatmap
from winnow.report.keptmap import Panel, draw_kept_map
from winnow.report.pairs import draw_divergences, draw_overlaps
from winnow.report.retention import Strip, draw_retention
from winnow.report.tuning import BudgetLine, TuningCurve, draw_tuning

__all__ = [
    "BudgetLine",
    "Cost",
    "HeadMap",
    "Line",
    "Panel",
    "Profile",
    "Strip",
    "TuningCurve",
    "draw_accuracy",
    "draw_costs",
    "draw_divergences",
    "draw_heatmap",
    "draw_kept_map",
    "draw_overlaps",
    "draw_profiles",
    "draw_retention",
    "draw_tuning",
]
