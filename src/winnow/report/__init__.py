"""Results as pictures (needs the extra "plot")."""

from winnow.report.accuracy import Line, draw_accuracy
from winnow.report.keptmap import Panel, draw_kept_map

__all__ = ["Line", "Panel", "draw_accuracy", "draw_kept_map"]
