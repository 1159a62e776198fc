"""The small language model that ships with Winnow, and a document to try it on."""

from __future__ import annotations

from pathlib import Path

MODEL_PATH: Path = Path(__file__).resolve().parent
DOCUMENT_PATH: Path = MODEL_PATH / "document.txt"
QUESTIONS_PATH: Path = MODEL_PATH / "questions.jsonl"

__all__ = ["DOCUMENT_PATH", "MODEL_PATH", "QUESTIONS_PATH"]
