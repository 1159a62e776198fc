"""The small language model that ships with Winnow, the scores of its heads, and a document to try it on."""

from __future__ import annotations

import os.path
from pathlib import Path

MODEL_PATH: Path = Path(__file__).resolve().parent
DOCUMENT_PATH: Path = MODEL_PATH / "document.txt"
QUESTIONS_PATH: Path = MODEL_PATH / "questions.jsonl"
HEADS_PATH: Path = MODEL_PATH / "heads"

NAME = "winnow-bundled"
"""Name of the model in results and head scores."""


def is_bundled(model: str | Path) -> bool:
    """True if a directory, or a name on the Hugging Face hub, is this model."""
    try:
        # Not the methods of Path, which raise for names of no user's home, and for loops of links.
        return bool(str(model)) and os.path.realpath(os.path.expanduser(model)) == str(MODEL_PATH)
    except ValueError:
        # No file can have this name.
        return False


__all__ = ["DOCUMENT_PATH", "HEADS_PATH", "MODEL_PATH", "NAME", "QUESTIONS_PATH", "is_bundled"]
