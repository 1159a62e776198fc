"""Head scores from needles in haystacks, as HeadKV estimates them (Fu et al. 2024, arXiv 2410.19258): retrieval (R),
enhanced retrieval (ER), and retrieval with reasoning (R2)."""

from winnow.estimate.errors import NeedleError
from winnow.estimate.needle.examples import Example, ExampleSource, FileExamples, Kind, ProseExamples, TaskExamples
from winnow.estimate.needle.haystack import Haystack, ProseHaystack, TaskHaystack, TextHaystack
from winnow.estimate.needle.plan import Plan, Settings, spread_depths, spread_lengths
from winnow.estimate.needle.run import Outcome, estimate, summarise

__all__ = [
    "Example",
    "ExampleSource",
    "FileExamples",
    "Haystack",
    "Kind",
    "NeedleError",
    "Outcome",
    "Plan",
    "ProseExamples",
    "ProseHaystack",
    "Settings",
    "TaskExamples",
    "TaskHaystack",
    "TextHaystack",
    "estimate",
    "spread_depths",
    "spread_lengths",
    "summarise",
]
