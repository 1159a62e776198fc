"""Measure the bundled model: exact match of greedy answers by task and length.

    python training/evaluate_bundled.py

Documents come from `winnow.tasks.generate_document` with seeds that training
never uses. Answers are generated with the stock cache of transformers. The
table goes to the screen, into `evaluation.json` beside the weights, and into
the model card.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from winnow.metrics import EXACT_MATCH
from winnow.tasks import QUESTION_KINDS, Question, format_prompt, generate_document

ROOT = Path(__file__).resolve().parent.parent
FIRST_SEED = 1_000_000
QUESTIONS_PER_DOCUMENT = 4
TABLE_START, TABLE_END = "<!-- table -->", "<!-- end of table -->"

Pairs = list[tuple[str, Question]]
Table = dict[str, dict[str, dict[str, float]]]


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Exact match of the bundled model.")
    parser.add_argument("--model", type=Path, default=ROOT / "src" / "winnow" / "bundled")
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 512, 1024, 2048])
    parser.add_argument("--questions", type=int, default=100, help="least number per kind and length")
    parser.add_argument("--batch-tokens", type=int, default=16_384)
    parser.add_argument("--no-write", action="store_true", help="only print")
    return parser.parse_args()


def collect(tokens: int, least: int) -> Pairs:
    """Documents of consecutive seeds until every kind has `least` questions."""
    pairs: Pairs = []
    counts = dict.fromkeys(QUESTION_KINDS, 0)
    seed = FIRST_SEED
    while min(counts.values()) < least:
        document = generate_document(seed, tokens, QUESTIONS_PER_DOCUMENT)
        for question in document.questions:
            if counts[question.kind] < least:
                counts[question.kind] += 1
                pairs.append((document.text, question))
        seed += 1
    return pairs


@torch.no_grad()
def answer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pairs: Pairs, rows: int) -> list[str]:
    """Greedy answers, in batches of `rows` prompts."""
    answers: list[str] = []
    for start in range(0, len(pairs), rows):
        prompts = [format_prompt(text, question.text) for text, question in pairs[start : start + rows]]
        encoded = tokenizer(prompts, return_tensors="pt", padding=True, return_token_type_ids=False)
        generated = model.generate(**encoded, do_sample=False)
        new = generated[:, encoded.input_ids.shape[1] :]
        answers += tokenizer.batch_decode(new, skip_special_tokens=True)
    return answers


def measure(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pairs: Pairs, rows: int
) -> dict[str, dict[str, float]]:
    """Exact match and number of questions of each kind."""
    right: dict[str, list[float]] = {kind: [] for kind in QUESTION_KINDS}
    for (_, question), text in zip(pairs, answer(model, tokenizer, pairs, rows), strict=True):
        right[question.kind].append(EXACT_MATCH.score(text, question.expected))
    return {kind: {"exact_match": sum(hits) / len(hits), "n": len(hits)} for kind, hits in right.items()}


def markdown(table: Table) -> str:
    """The table as the model card shows it."""
    lines = ["| tokens | " + " | ".join(QUESTION_KINDS) + " | n per cell |", "|---" * (len(QUESTION_KINDS) + 2) + "|"]
    for tokens, row in table.items():
        cells = " | ".join(f"{row[kind]['exact_match']:.1%}" for kind in QUESTION_KINDS)
        lines.append(f"| {tokens} | {cells} | {min(int(row[kind]['n']) for kind in QUESTION_KINDS)} |")
    return "\n".join(lines)


def write(folder: Path, table: Table) -> None:
    """Store the numbers beside the weights and in the model card."""
    (folder / "evaluation.json").write_text(json.dumps(table, indent=2) + "\n")
    card = folder / "README.md"
    if card.exists():
        pattern = re.compile(f"{TABLE_START}.*?{TABLE_END}", re.DOTALL)
        block = f"{TABLE_START}\n{markdown(table)}\n{TABLE_END}"
        card.write_text(pattern.sub(lambda _: block, card.read_text()))


def main() -> None:
    """Evaluate every length and store the results."""
    args = parse_arguments()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model).eval()
    table: Table = {}
    for tokens in args.lengths:
        pairs = collect(tokens, args.questions)
        table[str(tokens)] = measure(model, tokenizer, pairs, max(1, args.batch_tokens // tokens))
        print(markdown({str(tokens): table[str(tokens)]}).splitlines()[-1], flush=True)
    print(markdown(table))
    if not args.no_write:
        write(args.model, table)


if __name__ == "__main__":
    main()
