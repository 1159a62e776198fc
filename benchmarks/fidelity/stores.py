"""Subjects of the fidelity study: stores alone on the whole cache, and methods with stores at equal bytes."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
PICTURES = ROOT / "docs" / "pictures"

TOKENS = 1024
"""Prompt and answer together, at most."""
QUESTIONS_PER_KIND = 4
MAX_NEW_TOKENS = 24
# The test documents of the study; nothing is tuned here.
DOCUMENTS = tuple(range(2_000_000, 2_000_016))
SHARES = (1, 2, 5, 10, 25)
"""Percent of the full cache's bytes."""

RATIOS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
PLAIN = "rotate=false, center=false, smooth=false"
"""Bits of the numbers as they are."""
FAMILIES: dict[str, tuple[str, ...]] = {
    "SPARK": tuple(f"spark({ratio})" for ratio in RATIOS),
    "SPARK, values too": tuple(f"spark({ratio}, values={ratio})" for ratio in RATIOS),
    "SPARK-p, SPARK-g": (
        *("spark-p(0.9)", "spark-p(0.95)", "spark-p(0.99)", "spark-p(0.99, saliency=squared)"),
        *("spark-g(4)", "spark-g(5)", "spark-g(5, 0.99, by=published, saliency=squared)", "spark-g(5, by=segments)"),
    ),
    "ThinK": tuple(f"think({ratio})" for ratio in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)),
    "bits per slot": ("bits(8)", "bits(6)", "bits(4)", "bits(3)", "bits(2)"),
    "bits per group": ("bits(8, group=32)", "bits(4, group=32)", "bits(4, group=64)", "bits(3, group=32)"),
    "bits of keys and of values": ("bits(k=8, v=4)", "bits(k=4, v=8)", "bits(k=4, v=2)"),
    "plain bits": (f"bits(8, {PLAIN})", f"bits(k=8, v=4, {PLAIN})", f"bits(4, {PLAIN})", f"bits(2, {PLAIN})"),
    "rotated bits": (
        "bits(8, center=false, smooth=false)",
        "bits(k=8, v=4, center=false, smooth=false)",
        "bits(4, center=false, smooth=false)",
        "bits(2, center=false, smooth=false)",
    ),
    "bits by head score": ("bits(8, 4)", "bits(4, 2)", "mixedbits(6)", "mixedbits(5)", "mixedbits(3)"),
    "KIVI": ("kivi(8)", "kivi(4)", "kivi(3)", "kivi(2)"),
    "SPARK + bits": (
        "spark(0.5)+bits(8)",
        "spark(0.8)+bits(8)",
        "spark(0.5)+bits(4)",
        "spark(0.8)+bits(8, 4)",
        "spark(0.8)+bits(4)",
    ),
    "ThinK + KIVI": ("think(0.3)+kivi(4)", "think(0.5)+kivi(4)", "think(0.3)+kivi(2)"),
}
"""Stores by kind, each from dear to cheap."""

VARIANTS = {
    "recovery": [
        f"spark({ratio}, recovery={way})"
        for ratio in (0.5, 0.8)
        for way in (
            *("degenerate", "gaussian", "exponential", "gaussian-printed", "exponential-printed"),
            *("constant", "none"),
        )
    ],
    "sign": [f"spark({ratio}, sign={sign})" for ratio in (0.5, 0.8) for sign in ("stored", "query", "none")],
    "norm": [f"spark({ratio}, norm={norm})" for ratio in (0.5, 0.8) for norm in ("rms", "group-mean", "mean")],
    "values": [f"spark({keys}, values={values})" for keys in (0.5, 0.8) for values in (0.3, keys)],
    "saliency": [f"spark({ratio}, saliency={way})" for ratio in (0.5, 0.8) for way in ("linear", "squared")],
}
"""SPARK's choices, one at a time."""

EVICTIONS = ("snapkv", "headkv-er", "cokv")
PACKED = (
    "",
    "spark(0.5)",
    "spark(0.8, values=0.5, recent=pruned)",
    "spark(0.8, recent=pruned)+bits(8)",
    "think(0.4)",
    "bits(8)",
    "bits(8, 4)",
    "bits(4)",
    "kivi(4)",
)
"""Stores that may follow an eviction; the empty one leaves slots dense."""


def needs_scores(store: str) -> bool:
    """True if bits differ between heads, for which the random models have no scores."""
    return "mixed" in store or "bits(8, 4)" in store or "bits(4, 2)" in store
