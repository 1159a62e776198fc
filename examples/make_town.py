"""Write `town.txt`, English prose with six facts in it, for examples with pretrained models.

python examples/make_town.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

from winnow.tasks.facts.documents import fact_document

FOLDER = Path(__file__).resolve().parent
SEED, WORDS = 700, 1100


def main() -> None:
    """Writes the file, and prints the questions that it answers."""
    parser = argparse.ArgumentParser(description="Write the example document for pretrained models.")
    parser.add_argument("--out", type=Path, default=FOLDER, help="Folder of the file.")
    document = fact_document(SEED, WORDS)
    (parser.parse_args().out / "town.txt").write_text(document.text + "\n", encoding="utf-8")
    for question in document.questions:
        print(question.text, question.answer)


if __name__ == "__main__":
    main()
