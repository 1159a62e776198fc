"""Scope of the study on pretrained models: documents, methods, budgets."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"

WORDS = 1100
"""Words of a document; about 1,450 tokens."""
DOCUMENTS = tuple(range(700, 706))
"""Seeds; every document has six questions."""
MAX_NEW_TOKENS = 14
BUDGETS = ("2%", "5%", "10%", "25%")

EVICTIONS = (
    "snapkv",
    "adakv",
    "kvec",
    "aperturekv",
    "h2o",
    "expectedattention(epsilon=0.01)+ada",
    "keydiff",
)
STORES = ("bits(8)", "kivi(4)", "bits(4)")
