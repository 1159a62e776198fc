"""The knob of a method that follows head scores, chosen on questions of its own and confirmed on others."""

from winnow.estimate.errors import TuneError
from winnow.estimate.tune.answering import Answering, Setting, Tally
from winnow.estimate.tune.choice import Point, Verdict, best, curve
from winnow.estimate.tune.intervals import overlap, wilson
from winnow.estimate.tune.knobs import KNOBS, Knob, Number, Tunable
from winnow.estimate.tune.protocol import digest, written
from winnow.estimate.tune.questions import Pages, Split, divided, generated, pages_of

__all__ = [
    "KNOBS",
    "Answering",
    "Knob",
    "Number",
    "Pages",
    "Point",
    "Setting",
    "Split",
    "Tally",
    "Tunable",
    "TuneError",
    "Verdict",
    "best",
    "curve",
    "digest",
    "divided",
    "generated",
    "overlap",
    "pages_of",
    "wilson",
    "written",
]
