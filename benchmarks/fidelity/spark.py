"""SPARK's choices one at a time: how much of a prompt's attention and of the next tokens each of them keeps.

    python benchmarks/fidelity/spark.py                          # the bundled model; writes docs/results/spark.*
    python benchmarks/fidelity/spark.py --model DIR --text FILE  # any model on any text, printed

The prompt is prefilled once, and every store packs all of it but the last tokens; these are then read over the packed
cache and over the dense one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import winnow
from attention_error import WINDOW, measure
from layers import ASKING, layers_of
from reporting import machine, markdown_table, write_results
from stores import RESULTS
from winnow.bundled import MODEL_PATH
from winnow.models import load_model, open_model
from winnow.tasks import generate_document

SEEDS = (2_000_000, 2_000_001)
HALF, MOST = 0.5, 0.8
RATIOS = (0.3, 0.5, 0.7, 0.8)


def at_both(choices: Sequence[str]) -> list[str]:
    """`spark` with each choice at both of the paper's ratios."""
    return [f"spark({ratio}, {choice})" for ratio in (HALF, MOST) for choice in choices]


TABLES = {
    "Recovery (Table 3)": at_both(
        [
            f"recovery={way}"
            for way in (
                *("degenerate", "gaussian", "exponential", "gaussian-printed", "exponential-printed"),
                *("constant", "none"),
            )
        ]
    ),
    "Pruning with recovery, with a constant, without, and ThinK (Fig. 2c and 4a)": [
        store
        for ratio in RATIOS
        for store in (
            f"spark({ratio})",
            f"spark({ratio}, recovery=constant)",
            f"spark({ratio}, recovery=none)",
            f"think({ratio})",
        )
    ],
    "Saliency and norm": at_both(
        [f"saliency={way}, norm={norm}" for way in ("linear", "squared") for norm in ("rms", "group-mean", "mean")]
    ),
    "Signs": at_both([f"sign={sign}" for sign in ("stored", "query", "none")]),
    "Keys and values (Table 5)": [
        f"spark({keys}, values={values})"
        for keys, values in ((0.5, 0), (0.5, 0.3), (0.5, 0.5), (0.8, 0), (0.8, 0.3), (0.8, 0.8))
    ],
    "Ratios by slot (Table 4)": [
        *("spark(0.3)", "spark(0.4)", "spark(0.5)"),
        *("spark-p", "spark-p(0.9)", "spark-p(0.99)", "spark-p(0.99, saliency=squared)"),
        *(
            f"spark-g({groups}{by})"
            for groups in (4, 5)
            for by in ("", ", 0.99, by=published, saliency=squared", ", by=segments")
        ),
    ],
}


@dataclass(frozen=True)
class Row:
    """One store, over all prompts."""

    store: str
    share: float
    """Bytes over those of dense slots."""
    error: float
    """Mean of |o' - o| / |o| of attention outputs."""
    divergence: float
    """Mean KL divergence of the next token's distribution from the dense cache's, in nats."""
    agreement: float
    """Share of tokens whose most likely successor is the dense cache's."""


class Prompt:
    """A prompt, its layers, and what the model says behind it over the dense cache."""

    @torch.no_grad()
    def __init__(self, model: Any, ids: Tensor) -> None:
        self.model, self.rest = model, ids[:, -ASKING:]
        self.layers = list(layers_of(model, ids))
        self.waiting = winnow.CompressedCache(model, winnow.method("full"), defer=True)
        model(ids[:, :-ASKING], cache=self.waiting, logits_to_keep=1)
        self.dense = self.logits("full")

    @torch.no_grad()
    def logits(self, method: str) -> Tensor:
        """fp32 [ASKING, V], log-probabilities of every next token."""
        cache = self.waiting.compressed_by(winnow.method(method))
        return self.model(self.rest, cache=cache).logits[0].float().log_softmax(-1)


def row(prompts: Sequence[Prompt], store: str) -> Row:
    """Bytes and losses of a store over all prompts."""
    method = winnow.method(f"full+{store}")
    found = measure([layer for prompt in prompts for layer in prompt.layers], method)
    dense = torch.cat([prompt.dense for prompt in prompts])
    packed = torch.cat([prompt.logits(str(method)) for prompt in prompts])
    divergence = (dense.exp() * (dense - packed)).sum(-1).mean()
    agreement = (dense.argmax(-1) == packed.argmax(-1)).float().mean()
    result = Row(store, found.share, found.error, float(divergence), float(agreement))
    print(result, file=sys.stderr, flush=True)
    return result


def texts(path: Path | None, tokens: int) -> Iterator[str]:
    """A file, or generated documents."""
    if path is not None:
        yield path.read_text(encoding="utf-8")
        return
    yield from (generate_document(seed, tokens, 1).text for seed in SEEDS)


def section(title: str, rows: Sequence[Row]) -> str:
    """A table under its title."""
    body = [
        [
            f"`{each.store}`",
            f"{100 * each.share:.1f} %",
            f"{each.error:.3f}",
            f"{each.divergence:.4f}",
            f"{100 * each.agreement:.1f} %",
        ]
        for each in rows
    ]
    head = ["store", "bytes of dense slots", "output error", "KL, nats", "same next token"]
    return f"## {title}\n\n{markdown_table(head, body)}"


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, help="a directory; the bundled model without it")
    parser.add_argument("--text", type=Path, help="read instead of generated documents")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--tables", type=int, nargs="*", help=f"only these, from 1 to {len(TABLES)}")
    args = parser.parse_args()
    source = open_model(args.model or MODEL_PATH)
    model = load_model(source, "cpu", "bfloat16")
    model.set_attn_implementation("winnow")
    encoded = [source.tokenizer(text, return_tensors="pt").input_ids for text in texts(args.text, args.tokens)]
    prompts = [Prompt(model, ids[:, : args.tokens]) for ids in encoded]
    tables = [table for number, table in enumerate(TABLES, 1) if not args.tables or number in args.tables]
    rows = {store: row(prompts, store) for store in dict.fromkeys(s for table in tables for s in TABLES[table])}
    sections = [section(table, [rows[store] for store in TABLES[table]]) for table in tables]
    measured = (
        f"{args.model.name if args.model else 'Bundled model'} in bfloat16, {len(prompts)} texts of at most "
        f"{args.tokens} tokens, of which the last {ASKING} are read over the packed others. Output errors leave the "
        f"last {WINDOW} slots dense. {machine()}"
    )
    again = "Regenerate with `python benchmarks/fidelity/spark.py`; how to read it: [stores](../stores.md#spark)."
    page = "\n\n".join(["# SPARK, one choice at a time", measured, again, *sections]) + "\n"
    print(page)
    if args.model is None and args.text is None and not args.tables:
        write_results(args.out, "spark", page, [asdict(each) for each in rows.values()])


if __name__ == "__main__":
    main()
