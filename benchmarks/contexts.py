"""Loading a context from a file: mapped, mapped and verified, and recognizing the model.

python benchmarks/contexts.py
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import winnow
from reporting import machine, markdown_table, write_results
from winnow.cache.fingerprint import ModelFingerprint

ROOT = Path(__file__).resolve().parents[1]
LAYERS, TOKENS, ROUNDS = 8, 24_000, 9


def small_llama() -> LlamaForCausalLM:
    """Random weights, little but its cache to load."""
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=2 * TOKENS,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    model.set_attn_implementation("winnow")
    return model


def seconds(work: Callable[[], object]) -> float:
    """Median over the rounds, after one that warms up."""
    work()
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return median(times)


def main() -> None:
    """Measure, write the page."""
    torch.set_num_threads(1)
    model = small_llama()
    ids = torch.randint(0, 512, (1, TOKENS), generator=torch.Generator().manual_seed(0))
    context = winnow.compress(model, ids, "snapkv @ 50%", chunk_size=2048)
    with tempfile.TemporaryDirectory() as folder:
        path = context.save(Path(folder) / "context.winnow")
        size = path.stat().st_size / 2**20
        parts = {
            "`load_context(verify=False)`": seconds(lambda: winnow.load_context(path, model, verify=False)),
            "`load_context()`": seconds(lambda: winnow.load_context(path, model)),
            "of it, recognizing the model": seconds(lambda: ModelFingerprint.of(model)),
        }
    rows = [[name, f"{1000 * taken:.1f}"] for name, taken in parts.items()]
    text = (
        f"# Loading contexts\n\nA context of {size:,.0f} MiB, {LAYERS} layers, {TOKENS:,} tokens, in the page cache; "
        f"medians of {ROUNDS}. {machine()}\n\nRegenerate with `python benchmarks/contexts.py`.\n\n"
        + markdown_table(["", "ms"], rows)
        + "\n"
    )
    records = [{"what": name, "seconds": taken, "mebibytes": size} for name, taken in parts.items()]
    write_results(ROOT / "docs" / "results", "contexts", text, records)
    print(text)


if __name__ == "__main__":
    main()
