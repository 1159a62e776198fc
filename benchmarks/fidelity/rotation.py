"""Error of attention over bits in rotated, centered and smoothed coordinates: random layers, and models.

    python benchmarks/fidelity/rotation.py [MODEL …]   # writes docs/results/rotation.*

MODEL: a directory, a GGUF file or a hub name; TITLE=MODEL gives it another title in the table.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from pydoc_data.topics import topics
from statistics import fmean

import torch
from torch import nn
from transformers import PreTrainedModel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import winnow
from attention_error import Error, measure
from layers import Layer, layers_of, llama_layers
from reporting import machine, markdown_table, write_results
from stores import RESULTS
from winnow.models import load_model, open_model

TOKENS = 1024
SHIFTED = (60, 62, 124, 126)
"""Channels that rotate slowly with the position, in pairs, so that a shift of them stays one."""
SHIFT = 40.0
STEPS = ("rotate", "center", "smooth")
TAKEN = ((), ("rotate",), ("center",), ("rotate", "center"), ("rotate", "smooth"), STEPS)
"""Steps of coordinates that are taken; the others are not."""


def stores() -> dict[str, str]:
    """Titles of stores, and the text that `winnow.method` reads."""
    found = {}
    for bits in ("8", "k=8, v=4", "4"):
        for taken in TAKEN:
            steps = ", ".join(f"{step}={'true' if step in taken else 'false'}" for step in STEPS)
            found[f"`bits({bits})`, {', '.join(taken) or 'plain'}"] = f"bits({bits}, {steps})"
    return found | {f"`{store}`": store for store in ("kivi(8)", "kivi(4)", "kivi(4, rotate=values)")}


def shifted_llama() -> PreTrainedModel:
    """A random Llama whose key projections have biases, large in four channels of every head, as Qwen2's have."""
    model = llama_layers(outliers=False)
    for layer in model.model.layers:
        bias = torch.zeros(8, 128, dtype=torch.bfloat16)
        bias[:, SHIFTED] = SHIFT
        layer.self_attn.k_proj.bias = nn.Parameter(bias.flatten())
    return model


def layers_of_model(name: str) -> list[Layer]:
    """All layers of a model, in fp32, on the beginning of Python's reference."""
    source = open_model(name)
    model = load_model(source, "cpu", "float32")
    model.set_attn_implementation("winnow")
    text = "\n\n".join(topics[name] for name in sorted(topics))
    ids = source.tokenizer(text[: 16 * TOKENS], add_special_tokens=False).input_ids[:TOKENS]
    return list(layers_of(model, torch.tensor([ids])))


def random_subjects() -> dict[str, list[Layer]]:
    """Layers of random models."""
    ids = torch.randint(0, 512, (1, TOKENS), generator=torch.Generator().manual_seed(0))
    made = {
        "random": llama_layers(outliers=False),
        "4 large channels": llama_layers(outliers=True),
        "4 shifted channels": shifted_llama(),
    }
    return {name: list(layers_of(model, ids)) for name, model in made.items()}


def cell(errors: list[Error]) -> str:
    """The mean over layers, and the worst layer."""
    found = [100 * each.error for each in errors]
    return f"{fmean(found):.1f} % ({max(found):.0f} %)"


def main() -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    torch.set_num_threads(1)
    subjects = random_subjects()
    args = parser.parse_args()
    for given in args.models:
        title, _, name = given.rpartition("=")
        subjects[title or Path(name).name] = layers_of_model(name)
    found: dict[str, dict[str, list[Error]]] = {}
    for title, store in stores().items():
        method = winnow.method(f"full+{store}")
        found[title] = {name: [measure([layer], method) for layer in layers] for name, layers in subjects.items()}
    body = [
        [title, f"{100 * errors['random'][0].share:.1f} %", *map(cell, errors.values())]
        for title, errors in found.items()
    ]
    table = markdown_table(["store", "bytes", *subjects], body)
    text = (
        "# Rotated, centered and smoothed bits\n\nError of attention outputs over a packed prompt of "
        f"{TOKENS} tokens: the mean over layers, and the worst layer. Random layers have Llama-3-8B's attention shape "
        "and bfloat16: as they are, with four key channels of every head eight times as large, and with a bias of "
        f"{SHIFT:g} on four key channels. Models read Python's reference in fp32. Plain bits are of the numbers "
        f"as they are. Bytes are the random layers'. {machine()}\n\n"
        "Regenerate with `python benchmarks/fidelity/rotation.py [MODEL …]`; how to read it: "
        f"[docs/stores.md](../stores.md#bits).\n\n{table}\n"
    )
    records = [
        {"store": title, "subject": name, "errors": [each.error for each in of_layers]}
        for title, errors in found.items()
        for name, of_layers in errors.items()
    ]
    write_results(args.out, "rotation", text, records)
    print(table)


if __name__ == "__main__":
    main()
