"""Perplexity under fewer bits: on as many texts as a tenth of a percent takes, paired with the full cache's.

    python benchmarks/frontier/perplexity.py MODEL [MODEL …]
    python benchmarks/frontier/perplexity.py "TITLE=MODEL" --texts 200 --runs DIR

MODEL: as for frontier.py. The next 128 tokens behind prompts of 1,024 are judged; the texts lie at regular places of
Python's own reference, so that no token is judged twice. A stopped run goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from math import exp, expm1
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import winnow
from evaluated import REFERENCE, RESULTS, ROOT, Part, Study, about, evaluate, studies_of, write_reference
from reporting import markdown_table, resumable, write_results
from winnow.models import open_model
from winnow.runs.folder import Run
from winnow.runs.intervals import Clusters, Estimate, mean_interval
from winnow.runs.rows import Row, rows_by
from winnow.store import LayerShape

METHODS = (
    "full+bits(8)",
    "full+bits(4, group=64, round=queries, dense_first=1)",
    "full+bits(4, group=64, round=queries, scales=signed, dense_first=1)",
)
LENGTHS = (1024, 8192)
"""Prompts whose bits per number are told."""


class Paired(NamedTuple):
    """A method against the full cache, on the same texts."""

    method: str
    texts: int
    full: float
    """Perplexity of the full cache."""
    change: Estimate
    """Change of the perplexity, as a share."""
    kl: Estimate
    agreement: float
    compress_seconds: float
    bits: dict[int, float]
    """Bits per number by tokens of the prompt, all that a cache holds of it counted."""


def part(texts: int) -> Part:
    """The run of `winnow eval`."""
    asked = ("text", "--lengths", "1024", "--examples", str(texts), "--protocol", "plain")
    return Part("perplexity", "real text", (*asked, "--data", f"{{folder}}/{REFERENCE}"), METHODS, "100%")


def paired(rows: Sequence[Row], shapes: Sequence[LayerShape]) -> list[Paired]:
    """Every method besides the full cache, fewest bits last."""
    by_method = rows_by(rows, lambda row: row.method)
    full = {row.content: row for row in by_method.pop("full")}
    found = [_paired(name, full, own, shapes) for name, own in by_method.items()]
    return sorted(found, key=lambda each: -each.bits[LENGTHS[0]])


def _paired(name: str, full: dict[str, Row], rows: Sequence[Row], shapes: Sequence[LayerShape]) -> Paired:
    pairs = [(full[row.content], row) for row in rows if row.content in full]
    differences = [other.scores["nll"] - one.scores["nll"] for one, other in pairs]
    change = mean_interval([Clusters.of(differences)])
    return Paired(
        method=name,
        texts=len(pairs),
        full=exp(sum(one.scores["nll"] for one, _ in pairs) / len(pairs)),
        change=Estimate(*(expm1(each) for each in change)),
        kl=mean_interval([Clusters.of([other.scores["kl"] for _, other in pairs])]),
        agreement=sum(other.scores["agreement"] for _, other in pairs) / len(pairs),
        compress_seconds=sum(other.compress_seconds for _, other in pairs) / len(pairs),
        bits={length: bits_per_number(name, shapes, length) for length in LENGTHS},
    )


def bits_per_number(name: str, shapes: Sequence[LayerShape], length: int) -> float:
    """Bits that a method's store takes for each key and value number of a prompt: positions, scales and all."""
    costs = [winnow.method(name).store.cost(shape) for shape in shapes]
    held = sum(cost.fixed + cost.slot * shape.heads * length for cost, shape in zip(costs, shapes, strict=True))
    return 8 * held / sum(shape.heads * length * (shape.key_dim + shape.value_dim) for shape in shapes)


def shapes_of(study: Study) -> list[LayerShape]:
    """Every layer of the study's model, in bfloat16."""
    config = open_model(study.model).config.get_text_config(decoder=True)
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return [LayerShape(layer, config.num_key_value_heads, dim, dim, 2, 0) for layer in range(config.num_hidden_layers)]


def section_text(study: Study, run: Run) -> str:
    """Title, machine and table of a model."""
    found = paired(run.rows, shapes_of(study))
    body = [
        [
            f"`{each.method}`",
            *(f"{each.bits[length]:.2f}" for length in LENGTHS),
            f"{100 * each.change.mean:+.3f} %",
            f"{100 * each.change.low:+.3f} … {100 * each.change.high:+.3f} %",
            f"{each.kl.mean:.5f}",
            f"{100 * each.agreement:.2f} %",
            f"{1000 * each.compress_seconds:.0f} ms",
        ]
        for each in found
    ]
    bits = [f"bits, {length:,} tokens" for length in LENGTHS]
    head = ["method", *bits, "perplexity", "95 %", "KL", "same next token", "packing"]
    words = f"{about(run)} The full cache's perplexity is {found[0].full:.3f}."
    return "\n\n".join([f"## {study.title}", words, markdown_table(head, body)])


def page(sections: Sequence[str]) -> str:
    """The page of all models."""
    head = (
        "# Perplexity under fewer bits\n\nChange of the perplexity of the next 128 tokens against the full cache's on "
        "the same texts, with its interval over texts (bootstrap); KL in nats from the full cache's next token. Bits "
        "are those per key and value number of a prompt, with scales, statistics, positions and dense slots. The full "
        "cache computes in bfloat16 itself: another order of its sums changes the perplexity, too, and what is as "
        "near as `bits(8)` cannot be told from it.\n\n"
        "Regenerate with `python benchmarks/frontier/perplexity.py MODEL …` (an hour on a core, resumable)."
    )
    return "\n\n".join([head, *sections]) + "\n"


def _record(study: Study, each: Paired) -> dict[str, Any]:
    numbers = {"change": each.change._asdict(), "kl": each.kl._asdict()}
    return {"model": study.title, **each._asdict(), **numbers}


def main() -> None:
    """Evaluates what is missing, then writes the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="MODEL", help="directory, file or hub name, or TITLE=MODEL")
    parser.add_argument("--runs", type=Path, default=ROOT / "build" / "frontier", help="folder of all runs")
    parser.add_argument("--texts", type=int, default=200, help="whose continuation is predicted under every method")
    parser.add_argument("--page-only", action="store_true", help="write the page from the runs that are there")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the page")
    options = parser.parse_args()
    studies = studies_of(options.models, options.runs)
    for study in studies if not options.page_only else ():
        study.begin()
        write_reference(study)
        evaluate(study, part(options.texts))
    runs = [(study, run) for study in studies if (run := study.run(part(options.texts)))]
    text = page([section_text(study, run) for study, run in runs])
    found = [_record(study, each) for study, run in runs for each in paired(run.rows, shapes_of(study))]
    write_results(options.results, "perplexity", text, found)
    print(text)


if __name__ == "__main__":
    resumable(main)
