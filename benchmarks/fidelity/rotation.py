"""Error of attention over rotated and centered bits, on random layers with and without channels that stand out.

python benchmarks/fidelity/rotation.py   # writes docs/results/rotation.*
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import winnow
from attention_error import Error, measure
from layers import layers_of, random_llama
from reporting import machine, markdown_table, write_results
from stores import RESULTS

TOKENS = 1024
SHIFTED = (60, 62, 124, 126)
"""Channels that rotate slowly with the position, in pairs, so that a shift of them stays one."""
SHIFT = 40.0
STORES = (
    "bits(8)",
    "bits(8, rotate=true)",
    "kivi(8)",
    "bits(k=8, v=4)",
    "bits(k=8, v=4, rotate=true)",
    "bits(4)",
    "bits(4, center=true)",
    "bits(4, rotate=true)",
    "bits(4, rotate=true, center=true)",
    "kivi(4)",
    "kivi(4, rotate=true)",
)


def shifted_llama() -> PreTrainedModel:
    """A random Llama whose key projections have biases, large in four channels of every head, as Qwen2's have."""
    model = random_llama(outliers=False)
    for layer in model.model.layers:
        bias = torch.zeros(8, 128, dtype=torch.bfloat16)
        bias[:, SHIFTED] = SHIFT
        layer.self_attn.k_proj.bias = nn.Parameter(bias.flatten())
    return model


def main() -> None:
    """Measure, write, print."""
    torch.set_num_threads(1)
    models = {
        "random": random_llama(outliers=False),
        "4 large channels": random_llama(outliers=True),
        "4 shifted channels": shifted_llama(),
    }
    ids = torch.randint(0, 512, (1, TOKENS), generator=torch.Generator().manual_seed(0))
    layers = {name: list(layers_of(model, ids)) for name, model in models.items()}
    found: dict[str, dict[str, Error]] = {}
    for store in STORES:
        method = winnow.method(f"full+{store}")
        found[store] = {name: measure(each, method) for name, each in layers.items()}
    body = [
        [f"`{store}`", f"{100 * errors['random'].share:.1f} %", *(f"{100 * e.error:.1f} %" for e in errors.values())]
        for store, errors in found.items()
    ]
    table = markdown_table(["store", "bytes", *models], body)
    text = (
        "# Rotated and centered bits\n\nError of attention outputs over a packed prompt of "
        f"{TOKENS} tokens, random layers of Llama-3-8B's attention shape in bfloat16: as they are, with four key "
        f"channels of every head eight times as large, and with a bias of {SHIFT:g} on four key channels. {machine()}"
        f"\n\nRegenerate with `python benchmarks/fidelity/rotation.py`.\n\n{table}\n"
    )
    records = [
        {"store": store, "model": name, **error._asdict()}
        for store, errors in found.items()
        for name, error in errors.items()
    ]
    write_results(RESULTS, "rotation", text, records)
    print(table)


if __name__ == "__main__":
    main()
