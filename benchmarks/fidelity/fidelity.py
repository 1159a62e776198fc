"""Cost of channels and bits: attention error and accuracy of every store, and which combination wins at equal bytes.

    python benchmarks/fidelity/fidelity.py   # writes docs/results/fidelity.* and docs/pictures/fidelity_*.png

Everything in bfloat16. Answers are journaled after every document: a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import winnow
from answers import ANSWERS, Answering, Asked, Tally, answer_findings
from attention_error import WINDOW, Error, measure
from journaled import DocumentJournal
from layers import ASKING, layers_of, llama_layers
from pages import Errors, frontier_table, store_table, wide_table, winners_table
from pictures import draw_errors, draw_frontier
from reporting import machine, resumable, software, write_results
from stores import (
    DOCUMENTS,
    EVICTIONS,
    FAMILIES,
    MAX_NEW_TOKENS,
    PACKED,
    PICTURES,
    QUESTIONS_PER_KIND,
    RESULTS,
    ROOT,
    SHARES,
    TOKENS,
    VARIANTS,
    needs_scores,
)
from winnow import Method
from winnow.bundled import MODEL_PATH
from winnow.estimate.journal import Journal
from winnow.evaluate.prompts import encode_prompt
from winnow.models import load_model, open_model
from winnow.tasks import generate_document

BUNDLED, RANDOM, OUTLYING = "bundled model", "random Llama", "random, outlier channels"
RANDOM_TOKENS, MEASURED = 1024, 2


class Fidelity:
    """Measurements on the bundled model."""

    def __init__(self, journal: Path) -> None:
        source = open_model(MODEL_PATH)
        self.model, self.tokenizer = load_model(source, "cpu", "bfloat16"), source.tokenizer
        self.model.set_attn_implementation("winnow")
        protocol = {"tokens": TOKENS, "questions_per_kind": QUESTIONS_PER_KIND, "answer_tokens": MAX_NEW_TOKENS}
        asked = Asked(**protocol)
        kept = Journal.open(journal, protocol | {"dtype": "bfloat16"} | software())
        opened = DocumentJournal(kept, {ANSWERS: answer_findings(asked)}, DOCUMENTS)
        self.answering = Answering(self.model, source.tokenizer, opened, asked)

    def errors(self, stores: Iterable[str]) -> Errors:
        """Results of every store, on the bundled model's documents and on random Llamas."""
        prompts = {BUNDLED: self._layers()}
        for name, outliers in ((RANDOM, False), (OUTLYING, True)):
            ids = torch.randint(0, 512, (1, RANDOM_TOKENS), generator=torch.Generator().manual_seed(0))
            prompts[name] = list(layers_of(llama_layers(outliers), ids))
        found: dict[str, dict[str, Error]] = {name: {} for name in prompts}
        for store in dict.fromkeys(stores):
            for name, layers in prompts.items():
                if name == BUNDLED or not needs_scores(store):
                    found[name][store] = measure(layers, self._known(winnow.method(f"full+{store}")))
        return found

    def answers(self, stores: Iterable[str]) -> dict[str, Tally]:
        """Accuracy on the whole cache, written by every store."""
        methods = {store: winnow.method(f"full+{store}") for store in dict.fromkeys(stores)}
        tallies = self.answering.tally("Whole cache", DOCUMENTS, [winnow.method("full"), *methods.values()])
        return {"full": tallies["full"]} | {store: tallies[str(method)] for store, method in methods.items()}

    def frontier(self) -> dict[str, list[Tally | None]]:
        """Accuracy of every eviction with every store at equal bytes; None where the window alone takes more."""
        names = [f"{eviction}+{store}" if store else eviction for eviction in EVICTIONS for store in PACKED]
        least = min(self._full_bytes(seed) for seed in DOCUMENTS)
        made = {name: [self._fitting(name, int(least * share / 100)) for share in SHARES] for name in names}
        methods = [method for row in made.values() for method in row if method]
        tallies = self.answering.tally("Equal bytes", DOCUMENTS, methods)
        return {name: [tallies[str(method)] if method else None for method in row] for name, row in made.items()}

    def _layers(self) -> list[Any]:
        prompts = [generate_document(seed, TOKENS, 1) for seed in DOCUMENTS[:MEASURED]]
        encoded = (encode_prompt(self.tokenizer, each.text, each.questions[0].text) for each in prompts)
        return list(chain.from_iterable(layers_of(self.model, ids) for ids in encoded))

    def _known(self, method: Method) -> Method:
        """With the bundled model's head scores where it needs some."""
        config = self.model.config
        return method.for_model(config.name_or_path, (config.num_key_value_heads,) * config.num_hidden_layers)

    def _full_bytes(self, seed: int) -> int:
        document = generate_document(seed, TOKENS, QUESTIONS_PER_KIND)
        config = self.model.config
        slot = 2 * config.head_dim * torch.bfloat16.itemsize
        tokens = min(encode_prompt(self.tokenizer, document.text, q.text).shape[1] for q in document.questions)
        return tokens * slot * config.num_key_value_heads * config.num_hidden_layers

    def _fitting(self, name: str, budget: int) -> Method | None:
        """The method, unless not even what it always keeps fits into the budget."""
        method = winnow.method(name, f"{budget}B")
        ids = torch.arange(8, 608)[None]
        try:
            winnow.compress(self.model, ids, method)
        except winnow.BudgetError:
            return None
        return method


def report(errors: Errors, tallies: dict[str, Tally], rows: dict[str, list[Tally | None]]) -> str:
    """The whole page."""
    full, columns = tallies["full"], [f"{share} %" for share in SHARES]
    own, wide = errors[BUNDLED], [RANDOM, OUTLYING]
    families = "\n\n".join(f"### {name}\n\n{store_table(stores, own, tallies)}" for name, stores in FAMILIES.items())
    variants = "\n\n".join(
        f"### {name}\n\n{store_table(stores, own, tallies)}\n\n{wide_table(stores, errors, wide)}"
        for name, stores in VARIANTS.items()
    )
    shapes = wide_table([store for stores in FAMILIES.values() for store in stores], errors, wide)
    parts = [
        f"Bundled model in bfloat16, {len(DOCUMENTS)} generated documents of at most {TOKENS} tokens, {full.questions} "
        f"questions, greedy answers, exact match, question visible at compression, window {WINDOW}. Full cache: "
        f"{100 * full.accuracy:.1f} %. Output error: attention of the last {ASKING} tokens' queries over everything "
        f"before them, packed, against the same dense. {machine()}",
        "Regenerate with `python benchmarks/fidelity/fidelity.py`; how to read it: [docs/stores.md](../stores.md).",
        f"## Which combination is best\n\n{winners_table(rows, columns, EVICTIONS)}",
        f"## Accuracy at equal bytes\n\n{frontier_table(rows, columns)}",
        f"## Stores on the whole cache\n\n{families}",
        f"## Choices of SPARK\n\n{variants}",
        f"## Random models of Llama-3-8B's attention shape\n\n{shapes}",
    ]
    return "# Fidelity of packed caches\n\n" + "\n\n".join(parts) + "\n"


def records(errors: Errors, tallies: dict[str, Tally], rows: dict[str, list[Tally | None]]) -> list[dict[str, Any]]:
    """For programs."""
    stores = [
        {"model": model, "store": store, **error._asdict()}
        for model, found in errors.items()
        for store, error in found.items()
    ]
    whole = [{"store": store, **_counts(tally)} for store, tally in tallies.items()]
    equal = [
        {"method": name, "percent": share, **_counts(tally)}
        for name, row in rows.items()
        for share, tally in zip(SHARES, row, strict=True)
        if tally
    ]
    return [*stores, *whole, *equal]


def _counts(tally: Tally) -> dict[str, Any]:
    share = sum(tally.share) / len(tally.share)
    return {"right": dict(tally.right), "asked": dict(tally.asked), "share": share}


def main() -> None:
    """Measure, write, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--journal", type=Path, default=ROOT / "build" / "fidelity.jsonl")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    args = parser.parse_args()
    journal = args.journal.resolve()
    os.chdir(ROOT)
    torch.set_num_threads(1)
    study = Fidelity(journal)
    stores = [store for group in (*FAMILIES.values(), *VARIANTS.values()) for store in group]
    errors, tallies = study.errors(stores), study.answers(stores)
    rows = study.frontier()
    write_results(args.out, "fidelity", report(errors, tallies, rows), records(errors, tallies, rows))
    asked = tallies["full"].questions
    draw_errors(
        PICTURES / "fidelity_error.png", FAMILIES, errors, "bfloat16; everything kept and packed, the window of 8 dense"
    )
    draw_frontier(
        PICTURES / "fidelity_frontier.png",
        rows,
        SHARES,
        tallies["full"],
        f"bundled model, bfloat16, {asked} questions on prompts of about {TOKENS} tokens; gray: all other combinations",
    )
    print(winners_table(rows, [f"{share} %" for share in SHARES], EVICTIONS))


if __name__ == "__main__":
    resumable(main)
