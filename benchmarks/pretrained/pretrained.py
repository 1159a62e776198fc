"""Answers of pretrained models from compressed caches, the question visible at compression and not.

    python benchmarks/pretrained/pretrained.py MODEL [MODEL …]

MODEL: a directory or a hub name of an instruction-tuned model; TITLE=MODEL gives it another title on the page. With
--headkv FILE, head scores of the model from `winnow heads needle --kind er`, HeadKV is asked as well. A journal in
build/ keeps what is done.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import winnow
from answers import prefix_share
from journaled import DocumentJournal, Findings
from reporting import machine, markdown_table, write_results
from scope import BUDGETS, DOCUMENTS, EVICTIONS, MAX_NEW_TOKENS, RESULTS, ROOT, STORES, WORDS
from winnow import Method
from winnow.errors import WinnowError
from winnow.estimate.journal import Journal
from winnow.estimate.records import Record
from winnow.evaluate import evaluate
from winnow.evaluate.prompts import document_tokens, encode_prompt
from winnow.evaluate.shared import SharedPrefill
from winnow.models import load_model, open_model
from winnow.tasks.facts.documents import fact_document
from winnow.typed import Between, Sized

SEEN, UNSEEN = "question seen", "question not seen"
_FOUND = Findings({"right": Annotated[list[bool], Sized(1)], "share": Annotated[float, Between(0, 2)]})


def holds_answer(text: str, answer: str) -> bool:
    """True if a generated text contains the answer as whole words, whatever the case."""
    return re.search(rf"\b{re.escape(answer.lower())}\b", text.lower()) is not None


class Asking:
    """A model, and the journal of what it answered already."""

    def __init__(self, model: str, journals: Path) -> None:
        title, _, name = model.rpartition("=")
        source = open_model(name)
        self.name = Path(source.name).name
        self.title = title or self.name
        self.tokenizer: PreTrainedTokenizerBase = source.tokenizer
        self.model: PreTrainedModel = load_model(source, "cpu", "auto")
        self.model.set_attn_implementation("winnow")
        config = {"model": self.name, "dtype": str(self.model.dtype), "words": WORDS, "answer": MAX_NEW_TOKENS}
        opened = Journal.open(journals / f"pretrained-{self.name}.jsonl", config)
        self.journal = DocumentJournal(opened, {SEEN: _FOUND, UNSEEN: _FOUND}, DOCUMENTS)

    def ask(self, task: str, methods: Sequence[Method]) -> dict[str, list[Record]]:
        """Findings on every document, by the method's text."""
        work = {SEEN: self._seen, UNSEEN: self._unseen}[task]
        return self.journal.over(task, f"{self.title}, {task}", DOCUMENTS, methods, work)

    def _seen(self, seed: int, methods: Sequence[Method]) -> Iterator[Record]:
        document = fact_document(seed, WORDS)
        right: dict[Method, list[bool]] = {method: [] for method in methods}
        shares: dict[Method, list[float]] = {method: [] for method in methods}
        questions = document.questions
        for trial in evaluate(self.model, self.tokenizer, document.text, questions, methods, MAX_NEW_TOKENS):
            right[trial.method].append(holds_answer(trial.text, trial.question.answer))
            shares[trial.method].append(prefix_share(trial.stats))
        for method in methods:
            yield {"method": str(method), "right": right[method], "share": fmean(shares[method])}

    def _unseen(self, seed: int, methods: Sequence[Method]) -> Iterator[Record]:
        """The document is compressed alone, then all questions are asked on forks of it."""
        document = fact_document(seed, WORDS)
        prompts = [encode_prompt(self.tokenizer, document.text, question.text) for question in document.questions]
        length = document_tokens(self.tokenizer, document.text, prompts)
        read = prompts[0][:, :length]
        dense = SharedPrefill(self.model, [read]).dense(read)
        for method in methods:
            context = winnow.Context(dense.compress(method).cache, read)
            texts = self._answers(context, [prompt[0, length:] for prompt in prompts])
            right = [holds_answer(*each) for each in zip(texts, (q.answer for q in document.questions), strict=True)]
            yield {"method": str(method), "right": right, "share": prefix_share(context.stats())}

    def _answers(self, context: winnow.Context, questions: Sequence[Tensor]) -> list[str]:
        """Answers to questions [n], side by side: rows of one cache, padded between document and question."""
        longest = max(map(len, questions))
        pads = torch.tensor([longest - len(question) for question in questions])
        asked = torch.stack([F.pad(question, (longest - len(question), 0)) for question in questions])
        document = context.input_ids.expand(len(questions), -1)
        mask = torch.cat([torch.ones_like(document), (torch.arange(longest) >= pads[:, None]).long()], dim=1)
        cache = context.cache()
        cache.batch_repeat_interleave(len(questions))
        ids = torch.cat([document, asked], dim=1)
        output = self.model.generate(
            ids, attention_mask=mask, past_key_values=cache, max_new_tokens=MAX_NEW_TOKENS, do_sample=False
        )
        return list(self.tokenizer.batch_decode(output[:, ids.shape[1] :], skip_special_tokens=True))


def evictions(scores: str | None) -> dict[str, list[Method]]:
    """Every eviction at every budget; scores: a file for HeadKV."""
    names = [*EVICTIONS, *([f"headkv-er(scores={scores})"] if scores else [])]
    return {name: [winnow.method(name, budget) for budget in BUDGETS] for name in names}


def stores() -> dict[str, Method]:
    """The whole cache, dense and in few bits."""
    return {name: winnow.method(name) for name in ("full", *(f"full+{store}" for store in STORES))}


def accuracy(records: Sequence[Record]) -> float:
    """Share of all questions answered right."""
    return fmean(right for record in records for right in record["right"])


def eviction_table(made: dict[str, list[Method]], found: dict[str, list[Record]]) -> str:
    """Accuracy of every eviction at every budget, the best first."""
    means = {name: [accuracy(found[str(method)]) for method in row] for name, row in made.items()}
    rows = [
        [f"`{name}`", *(f"{100 * mean:.0f} %" for mean in row)]
        for name, row in sorted(means.items(), key=lambda item: -sum(item[1]))
    ]
    return markdown_table(["method", *BUDGETS], rows)


def store_table(found: Sequence[dict[str, list[Record]]]) -> str:
    """Accuracy of the whole cache in every store, question seen and not, with its bytes."""
    rows = [
        [
            f"`{name}`",
            f"{100 * fmean(record['share'] for record in found[0][str(method)]):.0f} %",
            *(f"{100 * accuracy(records[str(method)]):.0f} %" for records in found),
        ]
        for name, method in stores().items()
    ]
    return markdown_table(["store", "bytes of the full cache", SEEN, UNSEEN], rows)


def measured(asking: Asking, scores: str | None) -> tuple[str, list[dict[str, Any]]]:
    """A model's part of the page, and of the records for programs."""
    made = evictions(scores)
    kept = [method for row in made.values() for method in row]
    whole = list(stores().values())
    seen, unseen = asking.ask(SEEN, [*whole, *kept]), asking.ask(UNSEEN, [*whole, *kept])
    text = (
        f"## {asking.title}, {str(asking.model.dtype).removeprefix('torch.')}\n\n"
        f"The whole cache:\n\n{store_table([seen, unseen])}\n\n"
        f"Budgets in shares of the prompt, question seen at compression:\n\n{eviction_table(made, seen)}\n\n"
        f"Question not seen at compression:\n\n{eviction_table(made, unseen)}"
    )
    rows = [
        {"model": asking.title, "task": task, "method": method, "right": sum(map(sum, (r["right"] for r in records)))}
        | {"asked": sum(len(r["right"]) for r in records), "share": fmean(r["share"] for r in records)}
        for task, found in ((SEEN, seen), (UNSEEN, unseen))
        for method, records in found.items()
    ]
    return text, rows


def main() -> None:
    """Ask, then write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="MODEL", help="directory or hub name, or TITLE=MODEL")
    parser.add_argument("--journals", type=Path, default=ROOT / "build", help="folder of the journals")
    parser.add_argument("--headkv", metavar="FILE", help="head scores of the model, for HeadKV")
    options = parser.parse_args()
    options.journals.mkdir(parents=True, exist_ok=True)
    parts, records = [], []
    for name in options.models:
        text, rows = measured(Asking(name, options.journals), options.headkv)
        parts.append(text)
        records += rows
    asked = 6 * len(DOCUMENTS)
    head = (
        f"# Pretrained models\n\n{asked} questions about facts in {len(DOCUMENTS)} documents of {WORDS:,} words of "
        "generated English prose, greedy answers, right where they contain the fact. 95 % intervals reach up to "
        f"{196 * (0.25 / asked) ** 0.5:.0f} points to either side. {machine()}\n\n"
        "Regenerate with `python benchmarks/pretrained/pretrained.py MODEL … --headkv FILE` (an hour on two cores, "
        "resumable)."
    )
    write_results(RESULTS, "pretrained", "\n\n".join([head, *parts]) + "\n", records)
    print("\n\n".join(parts))


if __name__ == "__main__":
    try:
        torch.set_grad_enabled(False)
        main()
    except KeyboardInterrupt:
        sys.exit("Interrupted; the same command goes on where it was.")
    except WinnowError as problem:
        sys.exit(str(problem))
