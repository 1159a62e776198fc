"""Write the demo's held-out document and its questions beside the bundled model.

python training/make_demo_document.py
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from winnow.tasks import generate_document

FOLDER = Path(__file__).resolve().parent.parent / "src" / "winnow" / "bundled"
FIELDS = ("kind", "text", "answer")


def main() -> None:
    """Generate the document of one seed and write it as text and JSON lines."""
    parser = argparse.ArgumentParser(description="Write the demo's document and questions.")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of both files")
    parser.add_argument("--seed", type=int, default=2_000_000)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--questions-per-kind", type=int, default=12)
    args = parser.parse_args()
    document = generate_document(args.seed, args.tokens, args.questions_per_kind)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "document.txt").write_text(document.text + "\n")
    lines = [json.dumps({name: getattr(question, name) for name in FIELDS}) for question in document.questions]
    (args.out / "questions.jsonl").write_text("\n".join(lines) + "\n")
    print(f"{len(document.text.split())} words, {len(lines)} questions")


if __name__ == "__main__":
    main()
