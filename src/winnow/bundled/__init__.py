"""The small language model that ships with Winnow, the scores of its heads, and a document to try it on."""

from __future__ import annotations

from pathlib import Path

MODEL_PATH: Path = Path(__file__).resolve().parent
DOCUMENT_PATH: Path = MODEL_PATH / "document.txt"
QUESTIONS_PATH: Path = MODEL_PATH / "questions.jsonl"
HEADS_PATH: Path = MODEL_PATH / "heads"

NAME = "winnow-bundled"
"""Name of the model in results and head scores."""


def is_bundled(model: str | Path) -> bool:
    """True if a directory, or a name on the Hugging Face hub, is this model."""
    return bool(str(model)) and Path(model).expanduser().resolve() == MODEL_PATH


__all__ = ["DOCUMENT_PATH", "HEADS_PATH", "MODEL_PATH", "NAME", "QUESTIONS_PATH", "is_bundled"]
