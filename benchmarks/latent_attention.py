"""Decode attention of a layer whose heads share latents, by Winnow's kernels and in other ways.

    python benchmarks/latent_attention.py [--rounds 15]        # writes docs/results/latent_attention-VENDOR.*

Sizes are those of DeepSeek-V2-Lite. Contenders take turns in every round; medians. "By torch" attends to latents as
well, in torch's products of matrices, as on devices without kernels. "Expanding" makes keys and values of all heads
first, as transformers does at every step; "expanded before" attends by the kernels to keys and values that are kept so,
8.9 times the bytes. A limit is the longer of reading matrices and latents once, and of as many products in registers
with numbers of as many bits.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

from decode_attention import sdpa
from reporting import machine, markdown_table, name_of, of_this_processor, rounds_and_folder, write_results
from rounds import Bench, measure
from winnow.cache.latent import Projection
from winnow.cache.latent_plan import LatentPlan
from winnow.cache.prefix import Prefix
from winnow.cache.tail import Tail
from winnow.kernels import AttentionSpec, Block, DecodePlan, DenseBlock, PackedBlock, TailSegments, native
from winnow.kernels.latent import LatentAttention
from winnow.models.int8 import Int8Linear
from winnow.select import everything
from winnow.store import Bits, Packed
from winnow.view import LayerView

HEADS, LATENT, ROTATED, PLAIN, VALUE = 16, 512, 64, 128, 128
SLOTS, NEW, THREADS = (1024, 8192), (1, 256), (1, 2)
SPEC = AttentionSpec((PLAIN + ROTATED) ** -0.5)
DENSE, PACKED = "dense", {f"bits({bits})": Bits(bits) for bits in (8, 4)}
WINNOWS, TORCHS, EXPANDING, EXPANDED = "Winnow's kernels", "by torch", "expanding, then sdpa", "expanded before"
OTHERS = (TORCHS, EXPANDING, EXPANDED)
READ, MULTIPLIED = "read", "multiplied"
Calls = dict[str, Callable[[], object]]
"""Contenders by name."""


@dataclass(frozen=True)
class Case:
    """A layer, and the milliseconds of all ways to attend in it."""

    threads: int
    dtype: str
    latents: str
    matrices: str
    kept: int
    new: int
    milliseconds: dict[str, float]

    def row(self) -> list[str]:
        """A line of the table."""
        ours = self.milliseconds[WINNOWS]
        cells = [
            str(self.threads),
            self.dtype,
            self.latents,
            self.matrices,
            f"{self.kept:,}",
            str(self.new),
            f"{ours:.3f}",
        ]
        for other in OTHERS:
            theirs = self.milliseconds.get(other)
            cells.append("" if theirs is None else f"{theirs:.2f}, {theirs / ours:.1f}x")
        limits = [self.milliseconds[each] for each in (READ, MULTIPLIED) if each in self.milliseconds]
        return [*cells, f"{max(limits) / ours:.2f}" if limits else ""]


def attention(dtype: torch.dtype, matrices: str) -> DeepseekV3Attention:
    """The attention module of one layer."""
    config = DeepseekV3Config(
        hidden_size=256,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        q_lora_rank=None,
        kv_lora_rank=LATENT,
        qk_rope_head_dim=ROTATED,
        qk_nope_head_dim=PLAIN,
        v_head_dim=VALUE,
    )
    module = DeepseekV3Attention(config, layer_idx=0).to(dtype).eval()
    if matrices == "int8":
        module.kv_b_proj = Int8Linear.of(module.kv_b_proj)
    return module


def one_token(keys: Tensor, values: Tensor) -> Tail:
    """A tail of the first token of keys [1, H, N, D] and values [1, H, N, Dv]."""
    tail = Tail(keys, values)
    tail.append(keys[:, :, :1], values[:, :, :1])
    return tail


def stored(latents: Tensor, rotated: Tensor, form: str) -> Block:
    """Latents [S, C] and rotated keys [S, Dr] in a form."""
    if form not in PACKED:
        return DenseBlock(latents, rotated, torch.tensor([0, len(latents)]))
    keys, values = latents[None], rotated[None]
    view = LayerView(layer=0, layers=1, queries=keys[:, -1:], keys=keys, values=values, scaling=1.0)
    return Packed(precision=PACKED[form]).pack(view, everything(keys), window=0)


def contenders(module: DeepseekV3Attention, kept: int, new: int, form: str) -> Calls:
    """Ways to attend with `new` tokens over `kept` ones and one more, and what bounds one token."""
    dtype = module.kv_a_layernorm.weight.dtype
    latents, rotated = torch.randn(kept, LATENT).to(dtype), torch.randn(kept, ROTATED).to(dtype)
    query = torch.randn(1, HEADS, new, PLAIN + ROTATED).to(dtype)
    cached = latents[None, None], rotated[None, None]
    prefix = Prefix(stored(latents, rotated, form), torch.arange(kept, dtype=torch.int32), kept, kept)
    tail, projection = one_token(*cached), Projection(module, HEADS, LATENT, ROTATED)
    plan = LatentPlan([prefix], tail, SPEC, projection)
    by_torch = LatentAttention([prefix.block], tail.segments(), SPEC)

    def through_torch() -> Tensor:
        sums = by_torch.run(*projection.absorbed(query))
        return projection.output(sums.to(dtype)).contiguous()

    found: Calls = {WINNOWS: lambda: plan.run(query), TORCHS: through_torch}
    if form == DENSE and projection.matrices().scales is None:
        found |= expanded(module, cached, query)
    if new == 1:
        found |= limits(projection, kept, prefix.block, dtype)
    return found


def expanded(module: DeepseekV3Attention, cached: tuple[Tensor, Tensor], query: Tensor) -> Calls:
    """Ways that make keys and values of all heads."""
    keys, values = module.expand_kv(*cached)
    offsets = torch.arange(HEADS + 1) * keys.shape[2]
    heads = DenseBlock(keys[0].flatten(0, 1).contiguous(), values[0].flatten(0, 1).contiguous(), offsets)
    tail = one_token(keys, values)
    before = DecodePlan([heads], TailSegments(tail.keys, tail.values, tail.lengths), SPEC)

    def expanding() -> Tensor:
        made, of_values = module.expand_kv(*cached)
        return sdpa(query, made, of_values, SPEC.scaling)

    return {EXPANDING: expanding, EXPANDED: lambda: before.run(query)}


def limits(projection: Projection, kept: int, block: Block, dtype: torch.dtype) -> Calls:
    """Reading matrices and latents once, and multiplying as often as a token does."""
    weight, read = projection.matrices().weight, torch.zeros(sum(block.bytes().values()), dtype=torch.uint8)
    bits = block.keys.entries.bits if isinstance(block, PackedBlock) else 16
    return {
        READ: lambda: native.read_sum(weight) + native.read_sum(read),
        MULTIPLIED: lambda: (
            native.multiply(HEADS * kept * (2 * LATENT + ROTATED), bits, dtype)
            + native.multiply(HEADS * (PLAIN + VALUE) * LATENT, 16, dtype)
        ),
    }


def cases(rounds: int) -> list[Case]:
    """All of them."""
    found = []
    for threads in THREADS:
        torch.set_num_threads(threads)
        for dtype in (torch.float32, torch.bfloat16):
            for form, matrices in ((DENSE, "plain"), (DENSE, "int8"), *((form, "plain") for form in PACKED)):
                module = attention(dtype, matrices)
                for kept, new in ((kept, new) for kept in SLOTS for new in NEW if form == DENSE or new == 1):
                    bench = measure(contenders(module, kept, new, form), rounds if new == 1 else max(3, rounds // 5))
                    found.append(Case(threads, name_of(dtype), form, matrices, kept, new, in_milliseconds(bench)))
                    print(found[-1].row(), flush=True)
    return found


def in_milliseconds(bench: Bench) -> dict[str, float]:
    """Medians by contender."""
    return {name: 1e3 * seconds for name, seconds in bench.medians().items()}


def publish(found: Sequence[Case], options: Namespace) -> None:
    """Prints the table and writes its page."""
    head = ["threads", "dtype", "latents", "matrices", "kept", "new tokens", WINNOWS, *OTHERS, "of the limit"]
    text = (
        f"# Latent attention\n\n`python benchmarks/latent_attention.py`. {machine()} One layer of DeepSeek-V2-Lite's "
        f"sizes: {HEADS} heads over latents of {LATENT} channels and rotated keys of {ROTATED}. Milliseconds, "
        "medians of contenders that took turns. *By torch*: the same in torch's products of matrices. *Expanding, then "
        "sdpa*: keys and values of all heads first, as transformers does. *Expanded before*: Winnow's kernels over "
        "keys and values of all heads, 8.9 times the bytes. Above 1x, Winnow's kernels over latents are faster. "
        "*Of the limit*: the time of reading matrices and latents once, or of as many products in registers if that is "
        f"longer, as a share of the kernels' time.\n\n{markdown_table(head, [each.row() for each in found])}\n"
    )
    print(text)
    write_results(options.out, of_this_processor("latent_attention"), text, list(map(asdict, found)))


@torch.no_grad()
def main() -> None:
    """Measures and writes the table."""
    options = rounds_and_folder(__doc__, rounds=15)
    torch.manual_seed(0)
    publish(cases(options.rounds), options)


if __name__ == "__main__":
    main()
