"""Pieces of a prefill: attention over a prompt against sdpa; products in bfloat16, and linear layers, against float32.

    python benchmarks/prefill_kernels.py        # writes docs/results/prefill_kernels-VENDOR.*

CPU time of one thread. Contenders take turns; a ratio is the median of those of the rounds. Products are measured once
for every instruction set that the processor has, each in a process that is told to leave better ones aside. Layers are
measured where Winnow's kernels are made for many rows.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from reporting import limits, machine, markdown_table, name_of, of_this_processor, rounds_and_folder, write_results
from rounds import Bench, measure
from winnow.kernels import AttentionSpec, prefill
from winnow.kernels.linear import multiplies_many
from winnow.models import compiled
from winnow.models.compiled import CompiledLinear
from winnow.models.int4 import Int4Linear
from winnow.models.int8 import Int8Linear
from winnow.models.quantized import QuantizedLinear

SDPA, COMPILED, PAID = "sdpa", "compiled", "with what was paid"


class Shape(NamedTuple):
    """Attention of the last queries of a prompt."""

    query_heads: int
    heads: int
    dim: int
    tokens: int
    queries: int
    dtype: torch.dtype
    window: int | None = None

    @property
    def name(self) -> str:
        """In words."""
        last = "" if self.queries == self.tokens else f"the last {self.queries:,} of "
        heads = f"{self.query_heads}/{self.heads} heads, D {self.dim}"
        window = f", a window of {self.window:,}" if self.window else ""
        return f"{heads}, {last}{self.tokens:,} tokens{window}, {name_of(self.dtype)}"


SHAPES = [
    Shape(8, 2, 64, 4096, 4096, torch.float32),
    Shape(4, 1, 128, 8192, 8192, torch.float32),
    Shape(14, 2, 64, 1400, 1400, torch.float32),
    Shape(14, 2, 64, 1400, 1400, torch.bfloat16),
    Shape(8, 2, 64, 4096, 4096, torch.bfloat16),
    Shape(4, 1, 128, 8192, 8192, torch.bfloat16),
    Shape(8, 4, 256, 2048, 2048, torch.bfloat16),
    Shape(8, 2, 64, 4096, 4096, torch.float16),
    Shape(8, 2, 64, 4096, 1024, torch.float32),
    Shape(14, 2, 64, 2048, 512, torch.float32),
    Shape(14, 2, 64, 2048, 512, torch.bfloat16),
    Shape(8, 2, 64, 4096, 4096, torch.bfloat16, 512),
    Shape(8, 2, 128, 4096, 4096, torch.float32, 1024),
    Shape(8, 2, 128, 8192, 8192, torch.bfloat16, 1024),
    Shape(4, 1, 256, 4096, 4096, torch.bfloat16, 512),
    Shape(4, 1, 256, 8192, 8192, torch.bfloat16, 1024),
]
INPUTS, OUTPUTS, TOKENS = 896, 4864, (512, 1)
"""Sizes of a product, and of how many rows: a prompt, a step."""
MANY = (64, 128, 512, 2048)
"""Rows of inputs of a linear layer."""
BY_TORCH = "by torch"
LAYERS: dict[str, Callable[[nn.Linear], nn.Module]] = {
    "bfloat16": CompiledLinear.of,
    "int8": Int8Linear.of,
    "int4": Int4Linear.of,
}
"""Layers of an ordinary one, by what their weight is in."""


class InstructionSet(NamedTuple):
    """The best that products may use."""

    name: str
    flag: str
    """Name that Linux has for it among those of the processor."""
    settings: dict[str, str]
    """Variables of a process that uses nothing better."""


SETS = [
    InstructionSet("AMX", "amx_bf16", {}),
    InstructionSet("AVX-512 BF16", "avx512_bf16", {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}),
    InstructionSet("AVX-512 with VNNI", "avx512_vnni", {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"}),
    InstructionSet("AVX2", "avx2", {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}),
]


def attention(shape: Shape, rounds: int) -> dict[str, Any]:
    """The ways to attend over a prompt against sdpa as transformers calls it: ms, and ratios to it."""
    generator = torch.Generator().manual_seed(0)

    def draw(heads: int, tokens: int) -> Tensor:
        return torch.randn(heads, tokens, shape.dim, generator=generator).to(shape.dtype)

    # As models lay them: queries and keys head by head, since they were rotated, values token by token.
    values = draw(shape.tokens, shape.heads).transpose(0, 1)
    prompt = prefill.Prompt(draw(shape.query_heads, shape.queries), draw(shape.heads, shape.tokens), values)
    spec = AttentionSpec(shape.dim**-0.5)
    runs: dict[str, Callable[[], Any]] = {
        SDPA: partial(sdpa, prompt, spec, mask_of(shape)),
        COMPILED: lambda: prefill.attended(prompt, spec, shape.window),
        PAID: lambda: prefill.attend(prompt, spec, shape.window),
    }
    bound = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}[shape.dtype]
    torch.testing.assert_close(runs[COMPILED](), runs[SDPA](), rtol=bound, atol=bound)
    bench = measure(runs, rounds, time.process_time)
    return {"shape": shape.name, **row_of(bench, SDPA)}


def mask_of(shape: Shape) -> Tensor | None:
    """The mask that transformers makes once for all layers where there are earlier tokens, or a window."""
    if shape.queries == shape.tokens and not shape.window:
        return None
    earlier = shape.tokens - shape.queries
    seen = torch.ones(1, 1, shape.queries, shape.tokens, dtype=torch.bool).tril(earlier)
    return seen.triu(earlier - shape.window + 1) if shape.window else seen


def sdpa(prompt: prefill.Prompt, spec: AttentionSpec, mask: Tensor | None) -> Tensor:
    """The same [Q, Hq, D] by transformers' attention function."""
    module = SimpleNamespace(num_key_value_groups=len(prompt.queries) // len(prompt.keys), is_causal=True)
    batch = [each[None] for each in prompt]
    out: Tensor = sdpa_attention_forward(module, *batch, mask, scaling=spec.scaling)[0][0]
    return out


def products(rounds: int) -> list[dict[str, Any]]:
    """Products in bfloat16 against the same in float32, of a prompt and of a step; a process of its own calls this."""
    torch.set_num_threads(1)
    weight = torch.randn(OUTPUTS, INPUTS) / INPUTS**0.5
    rows = []
    for tokens in TOKENS:
        runs = {
            name_of(dtype): partial(multiply, torch.randn(tokens, INPUTS).to(dtype), weight.to(dtype))
            for dtype in (torch.float32, torch.bfloat16)
        }
        rows.append({"tokens": tokens, **row_of(measure(runs, rounds, time.process_time), name_of(torch.float32))})
    return rows


def multiply(rows: Tensor, weight: Tensor) -> None:
    """As many products as the clock needs."""
    for _ in range(1 if len(rows) > 1 else 50):
        torch.nn.functional.linear(rows, weight)


@torch.no_grad()
def layers(rounds: int) -> list[dict[str, Any]]:
    """Layers of many rows of bfloat16 against one in float32; none where kernels are not made for many rows."""
    if not multiplies_many(torch.bfloat16):
        return []
    plain = nn.Linear(INPUTS, OUTPUTS, bias=False)
    halves = nn.Linear(INPUTS, OUTPUTS, bias=False, dtype=torch.bfloat16).requires_grad_(False)
    made = {name: make(halves) for name, make in LAYERS.items()}
    found = []
    for tokens in MANY:
        rows = torch.randn(tokens, INPUTS)
        given = rows.bfloat16()
        runs: dict[str, Callable[[], Any]] = {name_of(torch.float32): partial(plain, rows)}
        for name, layer in made.items():
            runs |= {name: partial(layer, given), f"{name}, {BY_TORCH}": partial(by_torch, layer, given)}
        bench = measure(runs, rounds, time.process_time)
        found.append({"tokens": tokens, **row_of(bench, name_of(torch.float32))})
    return found


def by_torch(layer: nn.Module, rows: Tensor) -> Any:
    """Outputs of a layer whose weight is written out for torch."""
    no_kernels = patch.object(compiled, "multiplies_many", lambda _: False)
    with no_kernels, patch.object(QuantizedLinear, "fastest_plan", lambda *_: None):
        return layer(rows)


def products_by_set(rounds: int) -> list[dict[str, Any]]:
    """The same in every instruction set that this processor has; none if it is told to do without the best."""
    if limits():
        return []
    info = Path("/proc/cpuinfo")
    flags = set(info.read_text(encoding="utf-8").split()) if info.exists() else set()
    found = []
    for each in SETS:
        if each.flag in flags:
            found += [{"set": each.name, **row} for row in in_process(each.settings, partial(products, rounds))]
    return found


def in_process(settings: dict[str, str], work: Callable[[], Any]) -> Any:
    """Result of some work in a new process with such variables."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            return pool.submit(work).result()
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def row_of(bench: Bench, reference: str) -> dict[str, Any]:
    """CPU ms of the reference, and the others' share of it."""
    ratios = {name: bench.ratio(name, reference) for name in bench.seconds if name != reference}
    return {"reference": reference, "reference_ms": bench.median(reference) * 1e3, "ratios": ratios}


def attention_table(rows: list[dict[str, Any]]) -> str:
    """Attention over prompts."""
    body = [
        [row["shape"], f"{row['reference_ms']:.0f}", *(f"{row['ratios'][name]:.2f}" for name in (COMPILED, PAID))]
        for row in rows
    ]
    return markdown_table(["one thread", "sdpa, CPU ms", "compiled, of sdpa", f"{PAID}, of sdpa"], body)


def products_part(rows: list[dict[str, Any]]) -> str:
    """The part of the page about products, if any was measured: a line for each instruction set."""
    if not rows:
        return ""
    prompts, steps = ([row for row in rows if row["tokens"] == tokens] for tokens in TOKENS)
    body = [
        [first["set"], *(f"{each['ratios'][name_of(torch.bfloat16)]:.2f}" for each in (first, second))]
        for first, second in zip(prompts, steps, strict=True)
    ]
    head = ["bfloat16, CPU time of float32's", f"{TOKENS[0]} tokens", "one token"]
    return (
        f"\n## Products of matrices\n\n[n, {INPUTS}] times [{INPUTS}, {OUTPUTS}]. The same processor, told to leave "
        f"better instructions aside; the reference is the product in float32 in the same process.\n\n"
        f"{markdown_table(head, body)}\n"
    )


def layers_part(rows: list[dict[str, Any]]) -> str:
    """The part of the page about linear layers, if any was measured."""
    if not rows:
        return ""

    def cell(ratios: dict[str, float], name: str) -> str:
        return f"{ratios[name]:.2f} ({ratios[f'{name}, {BY_TORCH}']:.2f})"

    body = [
        [f"{row['tokens']:,}", f"{row['reference_ms']:.1f}", *(cell(row["ratios"], name) for name in LAYERS)]
        for row in rows
    ]
    head = ["tokens", "float32, CPU ms", *(f"{name}, of float32" for name in LAYERS)]
    return (
        f"\n## Linear layers\n\n[n, {INPUTS}] in bfloat16 times a weight [{INPUTS}, {OUTPUTS}], as Winnow's layers do "
        f"it, and in brackets as torch does, from weights written out for it: those of fewer bits, and where it has "
        f"no library for bfloat16 these, too. The reference is torch's layer in float32.\n\n"
        f"{markdown_table(head, body)}\n"
    )


def main() -> None:
    """Measure, print, write."""
    options = rounds_and_folder(__doc__, rounds=7)
    torch.set_num_threads(1)
    attended = [{"table": "attention", **attention(shape, options.rounds)} for shape in SHAPES]
    multiplied = [{"table": "products", **row} for row in products_by_set(options.rounds)]
    layered = [{"table": "layers", **row} for row in layers(options.rounds)]
    text = (
        f"# Pieces of a prefill\n\n`python benchmarks/prefill_kernels.py`. CPU time of one thread, medians of "
        f"{options.rounds} rounds in turns; below 1 is faster than the reference. {machine()}\n\n"
        f"## Attention over a prompt\n\nThe reference is torch's sdpa as transformers calls it.\n\n"
        f"{attention_table(attended)}\n{products_part(multiplied)}{layers_part(layered)}"
    )
    print(text)
    write_results(options.out, of_this_processor("prefill_kernels"), text, attended + multiplied + layered)


if __name__ == "__main__":
    main()
