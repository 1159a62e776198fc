"""Write `report.txt`, the document of the first examples, and questions about it: `questions.jsonl` for `winnow run`,
`exam.jsonl` for `winnow eval`.

python examples/make_report.py

It reads like every document that the bundled model knows, and was generated from a seed for which the bundled model
finds Alice's favorite fruit in 64 slots per KV head; docs/study.md measures how often methods find something.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from winnow.tasks import QUESTION_KINDS, Question, generate_document, lead_in

FOLDER = Path(__file__).resolve().parent
SEED, TOKENS, PER_KIND = 3_001_222, 1024, 12
FIRST = "What is the favorite fruit of Alice?"
KEPT_PER_KIND = 3


def main() -> None:
    """Writes the files."""
    parser = argparse.ArgumentParser(description="Write the examples' document and questions.")
    parser.add_argument("--out", type=Path, default=FOLDER, help="Folder of the files.")
    folder = parser.parse_args().out
    document = generate_document(SEED, TOKENS, PER_KIND)
    (folder / "report.txt").write_text(document.text + "\n", encoding="utf-8")
    questions = chosen(document.questions)
    write_lines(folder / "questions.jsonl", [{"question": each.text, "answer": each.answer} for each in questions])
    write_lines(folder / "exam.jsonl", [asked(document.text, each) for each in questions])
    print(f"{len(document.text.split())} words, {len(questions)} questions")


def asked(document: str, question: Question) -> dict[str, str]:
    """A question in the form of `winnow eval file`, with the words after which the bundled model says a value."""
    return {
        "context": document,
        "question": f"\n\nQuestion: {question.text}\nAnswer:",
        "answer_prefix": f" {lead_in(question.text)}",
        "answers": question.answer,
    }


def write_lines(path: Path, records: Sequence[dict[str, str]]) -> None:
    """Writes JSON objects, one a line."""
    path.write_text("".join(f"{json.dumps(each)}\n" for each in records), encoding="utf-8")


def chosen(questions: tuple[Question, ...]) -> list[Question]:
    """Alice's fruit, then a few others of every kind."""
    first = next(each for each in questions if each.text == FIRST)
    others = [each for each in questions if each is not first]
    kinds = [[each for each in others if each.kind == kind] for kind in QUESTION_KINDS]
    return [first, *(each for kind in kinds for each in kind[:KEPT_PER_KIND])]


if __name__ == "__main__":
    main()
