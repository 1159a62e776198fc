"""Is a file of head scores what it says it is? A part of its estimation, done again and compared."""

from winnow.estimate.errors import NotVerifiable, VerifyError
from winnow.estimate.verify.agreement import Agreement, Bound, Fresh, compare
from winnow.estimate.verify.coalitions import Redrawn, expected_batches
from winnow.estimate.verify.needles import Rerun, choose, least_right, mean_and_error
from winnow.estimate.verify.settings import CokvSettings, NeedleSettings, cokv_settings, needle_settings

__all__ = [
    "Agreement",
    "Bound",
    "CokvSettings",
    "Fresh",
    "NeedleSettings",
    "NotVerifiable",
    "Redrawn",
    "Rerun",
    "VerifyError",
    "choose",
    "cokv_settings",
    "compare",
    "expected_batches",
    "least_right",
    "mean_and_error",
    "needle_settings",
]
