"""Settings of tuning: light to import, because a command line shows the defaults."""

from __future__ import annotations

DOCUMENTS = 12
"""Generated documents to choose by, and as many to confirm."""
DOCUMENT_TOKENS = 1024
"""Prompt and answer of a generated document, at most."""
QUESTIONS_PER_KIND = 4
SHARE = 0.15
"""Share of a file's documents for validation (as in CoKV's experiments)."""
SHARE_OF_VALIDATION = 0.5
"""The same of a file that is the validation part of a benchmark."""
MAX_NEW_TOKENS = 24
BATCH_SIZE = 16
"""Questions decoded side by side."""
