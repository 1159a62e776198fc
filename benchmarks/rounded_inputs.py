"""Drift of next tokens where inputs of linear layers are rounded to 127 steps, by the numbers beside each other
that share a scale.

    python benchmarks/rounded_inputs.py MODEL ...     # writes docs/results/rounded_inputs.*

The layers' weights are those of the checkpoint, in bfloat16, so nothing else is rounded.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad
from transformers import PreTrainedModel

from reporting import RESULTS, machine, markdown_table, write_results
from weights import LIKELIHOOD_TOKENS, divergence
from winnow.commands.model_names import model_name
from winnow.models import load_model, open_model

ROOT = Path(__file__).resolve().parent.parent
STEPS = 127
TOGETHER = (32, 64, 128, 256, None)
"""Numbers that share a scale; None: those of a row."""


def rounded(numbers: Tensor, together: int | None) -> Tensor:
    """numbers [..., I] in steps of a 127th of the largest of those that share a scale."""
    width = numbers.shape[-1]
    blocks = pad(numbers.float(), (0, -width % (together or width))).unflatten(-1, (-1, together or width))
    step = blocks.abs().amax(-1, keepdim=True) / STEPS
    whole = (blocks / step.where(step > 0, 1)).round()
    return (whole * step).flatten(-2)[..., :width].to(numbers.dtype)


@contextmanager
def rounding(model: PreTrainedModel, together: int | None) -> Iterator[None]:
    """Has all linear layers but the last get rounded inputs."""

    def before(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (rounded(inputs[0], together), *inputs[1:])

    last = model.get_output_embeddings()
    layers = [each for each in model.modules() if isinstance(each, nn.Linear) and each is not last]
    handles = [layer.register_forward_pre_hook(before) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def measure(model: PreTrainedModel, text: Tensor) -> list[dict[str, Any]]:
    """A record of each size of blocks, and of inputs as they are."""
    reference = model(text).logits[0]
    found = [{"together": "as they are", **drift(reference, reference, text)}]
    for together in TOGETHER:
        with rounding(model, together):
            logits = model(text).logits[0]
        found.append({"together": str(together or "a row"), **drift(logits, reference, text)})
        print(found[-1], file=sys.stderr)
    return found


def drift(logits: Tensor, reference: Tensor, text: Tensor) -> dict[str, float]:
    """Mean of -log p of the text's tokens, and of the divergence from the reference."""
    likelihood = float(cross_entropy(logits[:-1].float(), text[0, 1:]))
    return {"nats_per_token": likelihood, "divergence": divergence(logits, reference)}


def main() -> None:
    """Measures and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="directory, GGUF file or Hugging Face name")
    parser.add_argument("--text", type=Path, default=ROOT / "examples" / "town.txt")
    parser.add_argument("--tokens", type=int, default=LIKELIHOOD_TOKENS, help="of the text")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args()
    records = []
    for name in options.models:
        source = open_model(name)
        text = source.tokenizer(options.text.read_text(encoding="utf-8"), return_tensors="pt").input_ids
        found = measure(load_model(source, "cpu", "bfloat16"), text[:1, : options.tokens])
        records += [{"model": model_name(source), **each} for each in found]
    head = ["model", "share a scale", "-log p", "KL"]
    table = markdown_table(head, [row(each) for each in records])
    print(table)
    about = (
        "# Inputs in 127 steps\n\n`python benchmarks/rounded_inputs.py MODEL ...`: inputs of all linear layers but the "
        f"last are rounded to 127 steps of the largest of as many numbers beside each other. {machine()} -log p: mean "
        f"over the first {options.tokens:,} tokens of a text, less is better. KL: mean divergence of the next token's "
        "distribution there from that with inputs as they are.\n\n"
    )
    write_results(options.out, "rounded_inputs", about + table + "\n", records)


def row(record: dict[str, Any]) -> list[str]:
    """A line of the table."""
    return [record["model"], record["together"], f"{record['nats_per_token']:.3f}", f"{record['divergence']:.4f}"]


if __name__ == "__main__":
    main()
