"""A document with questions, its prompts, and the command that asks about it."""

from __future__ import annotations

import json
from pathlib import Path

from winnow.evaluate.prompts import encode_prompt
from winnow.tasks import generate_document

DOCUMENT = generate_document(3, tokens=200, questions_per_kind=1)
QUESTION = DOCUMENT.questions[0]
ASK_RUN = ("run", "--document", "document.txt", "--question", QUESTION.text, "--max-new-tokens", "4")


def encoded(source, index=0):
    return encode_prompt(source.tokenizer, DOCUMENT.text, DOCUMENT.questions[index].text)


def write_asked(folder: Path) -> None:
    """The document as `document.txt`, one that is too long as `long.txt`, the questions as `questions.jsonl`."""
    (folder / "document.txt").write_text(DOCUMENT.text, encoding="utf-8")
    (folder / "long.txt").write_text(DOCUMENT.text * 40, encoding="utf-8")
    lines = [{"question": question.text, "answer": question.answer} for question in DOCUMENT.questions]
    (folder / "questions.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
