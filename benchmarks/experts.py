"""Experts of a layer for one token, a batch, and a piece of a prompt: transformers' function against Winnow's.

    python benchmarks/experts.py        # nine minutes; writes docs/results/experts-VENDOR.*

Time of one thread. Random weights in the shapes of published models; every call has other tokens with other experts.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import GptOssConfig, Qwen3MoeConfig
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

from reporting import DTYPES, rounds_and_folder
from winnow.models.experts import experts_forward
from within_steps import Timed, in_turns, publish


class Layer(NamedTuple):
    """Experts in the shape of a model's."""

    kind: type[nn.Module]
    config: Any
    experts: int
    chosen: int


LAYERS = {
    "Qwen3-30B-A3B: 8 of 128 experts, 2,048 to 768": Layer(
        Qwen3MoeExperts, Qwen3MoeConfig(hidden_size=2048, moe_intermediate_size=768, num_experts=128), 128, 8
    ),
    "GPT-OSS-20B: 4 of 32, 2,880 to 2,880, transposed": Layer(
        GptOssExperts, GptOssConfig(hidden_size=2880, intermediate_size=2880, num_local_experts=32), 32, 4
    ),
}
TOKENS = {1: 8, 8: 4, 64: 1}
"""Calls of a round by the number of tokens of each."""


def routed(layer: Layer, tokens: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Random tokens, their experts, and the weights of these."""
    scores = torch.rand(tokens, layer.experts).topk(layer.chosen)
    return torch.randn(tokens, layer.config.hidden_size).to(dtype), scores.indices, scores.values.softmax(-1).to(dtype)


def made(layer: Layer, dtype: torch.dtype) -> nn.Module:
    """Experts with random weights, a type at a time in memory."""
    with torch.device("meta"):
        experts = layer.kind(layer.config).to(dtype).requires_grad_(False)
    experts = experts.to_empty(device="cpu")
    for parameter in experts.parameters():
        parameter.normal_(std=0.02)
    return experts


def measure(layer: Layer, named: str, dtype: torch.dtype, rounds: int) -> list[Timed]:
    """A row for each number of tokens."""
    experts, found = made(layer, dtype), []
    for tokens, calls in TOKENS.items():
        given = [routed(layer, tokens, dtype) for _ in range(calls)]
        case = {"experts": named, "type": DTYPES[dtype], "tokens": str(tokens)}
        own = [partial(ALL_EXPERTS_FUNCTIONS["grouped_mm"], experts, *each) for each in given]
        found.append(in_turns(case, own, [partial(experts_forward, experts, *each) for each in given], rounds))
        print(" | ".join(found[-1].row()), flush=True)
    return found


@torch.no_grad()
def main() -> None:
    """Measures and writes the table."""
    options = rounds_and_folder(__doc__, rounds=2)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found = [
        row
        for (named, layer), dtype in product(LAYERS.items(), (torch.bfloat16, torch.float32))
        for row in measure(layer, named, dtype, options.rounds)
    ]
    about = (
        "Time of a layer's experts: the function that transformers chooses by itself (`grouped_mm`) against "
        "`winnow.models.experts`"
    )
    publish("experts", "Experts", about, found, options)


if __name__ == "__main__":
    main()
