"""One decode step of a layer whose heads share latents: over the latents, and by expanding them first.

Sizes are those of DeepSeek-V2-Lite. Contenders take turns in every round; times are milliseconds of one processor,
medians of the rounds. The last column attends with the compiled kernels to keys and values of all heads that are kept
expanded, 8.9 times the bytes.

    python benchmarks/latent_attention.py [--rounds 15]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

from decode_attention import sdpa
from reporting import machine, markdown_table, name_of
from winnow.cache.latent import Projection
from winnow.cache.latent_layer import LatentPlan
from winnow.cache.prefix import Prefix
from winnow.cache.tail import Tail
from winnow.kernels import AttentionSpec, DecodePlan, DenseBlock, TailSegments

HEADS, LATENT, ROTATED, PLAIN, VALUE = 16, 512, 64, 128, 128
SLOTS, NEW = (1024, 8192), (1, 256)
SPEC = AttentionSpec((PLAIN + ROTATED) ** -0.5)


def attention(dtype: torch.dtype) -> DeepseekV3Attention:
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
    return DeepseekV3Attention(config, layer_idx=0).to(dtype).eval()


def one_token(keys: Tensor, values: Tensor) -> Tail:
    """A tail of the first token of keys [1, H, N, D] and values [1, H, N, Dv]."""
    tail = Tail(keys, values)
    tail.append(keys[:, :, :1], values[:, :, :1])
    return tail


def contenders(
    module: DeepseekV3Attention, slots: int, new: int, dtype: torch.dtype
) -> dict[str, Callable[[], object]]:
    """Ways to attend with `new` tokens over `slots` kept ones and one more."""
    latents, rotated = torch.randn(slots, LATENT, dtype=dtype), torch.randn(slots, ROTATED, dtype=dtype)
    query = torch.randn(1, HEADS, new, PLAIN + ROTATED, dtype=dtype)
    cached = latents[None, None], rotated[None, None]
    block = DenseBlock(latents, rotated, torch.tensor([0, slots]))
    prefix = Prefix(block, torch.arange(slots, dtype=torch.int32), slots, slots)
    plan = LatentPlan([prefix], one_token(*cached), SPEC, Projection(module, HEADS, LATENT, ROTATED))

    def expanding() -> Tensor:
        keys, values = module.expand_kv(*cached)
        return sdpa(query, keys, values, SPEC.scaling)

    keys, values = module.expand_kv(*cached)
    offsets = torch.arange(HEADS + 1) * slots
    heads = DenseBlock(keys[0].flatten(0, 1).contiguous(), values[0].flatten(0, 1).contiguous(), offsets)
    tail = one_token(keys, values)
    expanded = DecodePlan([heads], TailSegments(tail.keys, tail.values, tail.lengths), SPEC)
    return {"latents": lambda: plan.run(query), "expanding": expanding, "expanded": lambda: expanded.run(query)}


def milliseconds(contenders: Mapping[str, Callable[[], object]], rounds: int) -> list[str]:
    """Processor time of every contender, the median of the rounds, after one to warm up."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for done in range(rounds + 1):
        for name, run in contenders.items():
            start = time.process_time()
            run()
            if done:
                times[name].append(time.process_time() - start)
    return [f"{1e3 * statistics.median(found):.1f}" for found in times.values()]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.manual_seed(0)
    torch.set_num_threads(1)
    body = []
    with torch.no_grad():
        for dtype in (torch.float32, torch.bfloat16):
            module = attention(dtype)
            for slots, new in ((slots, new) for slots in SLOTS for new in NEW):
                found = milliseconds(contenders(module, slots, new, dtype), rounds if new == 1 else max(3, rounds // 5))
                body.append([name_of(dtype), f"{slots:,}", str(new), *found])
    print(machine(), "\n")
    print(markdown_table(["dtype", "kept", "new tokens", "winnow", "expanding, then sdpa", "expanded before"], body))


if __name__ == "__main__":
    main()
