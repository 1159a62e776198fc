"""Tables of the K-VEC and ApertureKV papers on models that the user names, beside what the papers print.

    python benchmarks/papers/papers.py MODEL [MODEL …]
    python benchmarks/papers/papers.py "TITLE=MODEL" --tables coverage,redundancy

MODEL: a directory, a GGUF file or a hub name; TITLE=MODEL gives it another title on the page. A stopped run goes on
where it was.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import answered
import covered
import latency
import redundancy
from claims import parts
from evaluated import PICTURES, RESULTS, ROOT, Part, Study, evaluate, studies_of, write_reference
from reporting import machine, resumable
from winnow.files import write_text


@dataclass(frozen=True)
class Sizes:
    """Sizes of all measurements."""

    tokens: int
    prompts: int
    questions: int
    texts: int
    pictures: Path
    """Folder of pictures."""
    scores: Path | None = None
    """Head scores of the model, for the latency of HeadKV."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """Runs of `winnow eval`."""
        return parts(self.questions, self.texts)


def coverage(study: Study, sizes: Sizes) -> str:
    """K-VEC's Tables 3 and S4, ApertureKV's Tables 7 and 8."""
    text = covered.section(covered.measured(study, sizes.tokens, sizes.prompts), sizes.tokens)
    return f"{sizes.prompts} prompts of each kind.\n\n{text}\n\n{machine()}"


def alike(study: Study, sizes: Sizes) -> str:
    """ApertureKV's Table 6, Fig. 5 and Fig. 6."""
    found = redundancy.measured(study, sizes.tokens, sizes.prompts)
    picture = redundancy.draw(sizes.pictures, study, found, sizes.tokens)
    shown = f"![Divergence of the heads of every layer](../pictures/{picture.name})"
    text = redundancy.section(found, sizes.tokens)
    return f"{sizes.prompts} prompts of each kind.\n\n{text}\n\n{machine()}\n\n{shown}"


def time(study: Study, sizes: Sizes) -> str:
    """ApertureKV's Fig. 10."""
    return latency.section(latency.measured(study, sizes.tokens, sizes.scores))


def answers(study: Study, sizes: Sizes) -> str:
    """K-VEC's Table 6, ApertureKV's Tables 2, 4 and 5, CoKV's Algorithm 2."""
    write_reference(study)
    for part in sizes.parts:
        evaluate(study, part)
    return answered.section(study, sizes.parts)


TABLES: dict[str, tuple[str, Callable[[Study, Sizes], str]]] = {
    "coverage": ("What is kept, and how deep", coverage),
    "redundancy": ("Queries and heads that are alike", alike),
    "latency": ("Time of ApertureKV's halves", time),
    "answers": ("Answers by setting", answers),
}


def page(studies: Sequence[Study]) -> str:
    """The page, of the tables that were made for these models."""
    made = chain.from_iterable(_sections(study) for study in studies)
    head = (
        "# Tables of the papers\n\nK-VEC and ApertureKV print these tables for their own models and benchmarks; "
        "columns called *paper* repeat what they print. Both are to be compared row by row, not number by number. "
        "What the tables show here stands in [methods](../methods.md#the-papers-tables).\n\n"
        "Regenerate with `python benchmarks/papers/papers.py MODEL …` ([how](../../benchmarks/papers/README.md))."
    )
    return "\n\n".join([head, *made]) + "\n"


def _sections(study: Study) -> list[str]:
    texts = {title: study.folder / f"{name}.md" for name, (title, _) in TABLES.items()}
    found = [
        f"### {title}\n\n{path.read_text(encoding='utf-8').rstrip()}" for title, path in texts.items() if path.exists()
    ]
    return [f"## {study.title}", *found] if found else []


def main() -> None:
    """Makes the tables that were asked for, then the page of all that there are."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="MODEL", help="directory, file or hub name, or TITLE=MODEL")
    parser.add_argument("--tables", default=",".join(TABLES), metavar="LIST", help=f"of {', '.join(TABLES)}")
    parser.add_argument("--runs", type=Path, default=ROOT / "build" / "papers", help="folder of all that is found")
    parser.add_argument("--tokens", type=int, default=2048, help="of the prompts that are looked into")
    parser.add_argument("--prompts", type=int, default=4, help="of each kind that are looked into")
    parser.add_argument("--questions", type=int, default=24, help="that are answered; 0: none")
    parser.add_argument("--texts", type=int, default=8, help="whose continuation is predicted; 0: none")
    parser.add_argument("--scores", type=Path, help="head scores of the model, to time HeadKV, too")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="folder of the page and its pictures")
    parser.add_argument("--page-only", action="store_true", help="write the page from the tables that were made")
    options = parser.parse_args()
    wanted = options.tables.split(",")
    if unknown := [name for name in wanted if name not in TABLES]:
        parser.error(f"no table {', '.join(unknown)}; there are {', '.join(TABLES)}")
    if options.scores is not None and not options.scores.is_file():
        parser.error(f"no file {options.scores}; --scores is a table that winnow heads needle or kvzip writes")
    pictures = options.docs / PICTURES.name
    sizes = Sizes(options.tokens, options.prompts, options.questions, options.texts, pictures, options.scores)
    studies = studies_of(options.models, options.runs)
    for study in studies:
        study.begin()
        for name in () if options.page_only else wanted:
            _, make = TABLES[name]
            write_text(study.folder / f"{name}.md", make(study, sizes) + "\n")
    text = page(studies)
    write_text(options.docs / RESULTS.name / "papers.md", text)
    print(text)


if __name__ == "__main__":
    resumable(main)
