"""The knob of a method that follows head scores, chosen on questions of its own and confirmed on others."""

from winnow.heads.tune.answering import Answering, Setting, Tally
from winnow.heads.tune.choice import Point, Verdict, best, curve
from winnow.heads.tune.errors import TuneError
from winnow.heads.tune.intervals import overlap, wilson
from winnow.heads.tune.knobs import KNOBS, Knob, Number, Tunable
from winnow.heads.tune.protocol import digest, written
from winnow.heads.tune.questions import Pages, Split, divided, generated, pages_of

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
