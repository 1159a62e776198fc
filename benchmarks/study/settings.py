"""Scope of the study: documents, methods, budgets, and the knobs that are tuned before it."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
PICTURES = ROOT / "docs" / "pictures"

TOKENS = 1024
"""Prompt and answer together, at most."""
QUESTIONS_PER_KIND = 4
"""Number for every document; there are four kinds."""
MAX_NEW_TOKENS = 24
# Seeds of documents. Training and other measurements use others; the two splits share none.
VALIDATION = tuple(range(2_500_000, 2_500_012))
TEST = tuple(range(2_000_000, 2_000_050))
MEASURED = TEST[:25]
"""Those of the test documents whose prompts are looked into for what is kept."""
BUDGETS = (16, 32, 64, 128, 256)
TUNED_AT = (32, 64, 128, 256)
"""Budgets whose mean accuracy decides about a knob. At 16 every method is near zero."""

FIXED = (
    "random",
    "streamingllm",
    "knorm",
    "keydiff",
    "tova",
    "h2o",
    "snapkv",
    "pyramidkv",
    "adakv",
    "ada-pyramidkv",
    "expectedattention",
    "expectedattention(epsilon=0.01)+ada",
    "criticalkv",
    "critical-adakv",
)
"""Methods with nothing to tune here: defaults of their papers, with the window of 8 that all share. ExpectedAttention
also as its authors evaluate it, with a floor under the scores and with Ada."""

BETAS = (1.2, 1.005, 1.01, 1.1, 1.5, 2, 5, 10)
KVEC = "kvec(window=8, wide_window=16, wide_heads={}, novelty={})"
DUO = "streamingllm(sinks=4, recent=12)+duo(retrieval={}, scores=src/winnow/bundled/heads/headkv-r2.safetensors)"


def candidates() -> dict[str, list[str]]:
    """Tuned methods with the settings to choose from; the first one is taken where several are best."""
    headkv = {kind: [f"{kind}(beta={beta})" for beta in BETAS] for kind in ("headkv-r", "headkv-er", "headkv-r2")}
    return {
        **headkv,
        "cokv": [f"cokv(alpha={alpha})" for alpha in (1, 2, 3, 4, 6, 8)],
        "kvec": [KVEC.format(heads, novelty) for heads in (3, 2, 1, 0) for novelty in (1, 0, 0.1, 0.3, 3)],
        "aperturekv": [f"aperturekv(diversify={strength})" for strength in (0.45, 0, 0.1, 0.2, 0.3, 0.4, 0.5)],
    }


HALVES = {
    "snapkv": "snapkv",
    "snapkv, not pooled": "snapkv(kernel=1)",
    "kvec": KVEC.format(3, 1),
    "kvec, heads only": KVEC.format(3, 0),
    "kvec, layers only": KVEC.format(0, 1),
    "adakv": "adakv",
    "aperturekv": "aperturekv",
    "aperturekv, queries only": "snapkv(diversify=0.45, over=prefix)+ada",
    "aperturekv, budgets only": "snapkv(over=prefix)+raba",
    "aperturekv, neither": "snapkv(over=prefix)+ada",
}
"""Each half of K-VEC and ApertureKV without the other, at their papers' settings; and the method both start from:
the window scorer, also without its pooling, which K-VEC's importance does not have, and also over the prefix alone, as
ApertureKV's is."""


LOOKED_INTO = ("cokv", "headkv-er", "headkv-r2", "headkv-r", "kvec", "aperturekv", "snapkv")
"""Methods whose layers are looked into, at the largest budget."""


def without_budget() -> dict[str, str]:
    """DuoAttention sets its own total; its gates were never trained for this model, so R2 scores stand in."""
    return {f"duo, {share:.0%}": DUO.format(share) for share in (0.0625, 0.125, 0.25, 0.5)}
