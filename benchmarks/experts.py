"""Experts of a layer for one token, a batch, and a piece of a prompt: transformers' function against Winnow's.

    python benchmarks/experts.py        # two to eleven minutes; writes docs/results/experts-VENDOR.*

Time of one thread, of experts in types of checkpoints, and in few bits as `--weights` makes them. Random weights in the
shapes of published models; every call has other tokens with other experts.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
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
from winnow.models import quantize_weights
from winnow.models.experts import experts_forward, lay_out_by_output
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
TOKENS = {1: 8, 8: 2, 64: 1}
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


def quantized(experts: nn.Module, weights: str) -> nn.Module:
    """The experts in few bits, as `--weights` makes them; those given stay."""
    model: Any = nn.Module()
    model.experts = experts
    model.get_output_embeddings = model.get_input_embeddings = lambda: None
    quantize_weights(model, weights)
    found: nn.Module = model.experts
    return found


def own_forms(experts: nn.Module, dtype: torch.dtype) -> dict[str, Callable[..., Tensor]]:
    """Winnow's, by the weights that they have; in few bits beside bfloat16 alone."""
    few = ("int8", "int4") if dtype == torch.bfloat16 else ()
    forms: dict[str, Callable[..., Tensor]] = {f"`--weights {weights}`": quantized(experts, weights) for weights in few}
    laid_out: Any = deepcopy(experts)
    if laid_out.is_transposed:
        lay_out_by_output(laid_out)
    return {DTYPES[dtype]: partial(experts_forward, laid_out), **forms}


def measure(layer: Layer, named: str, dtype: torch.dtype, rounds: int) -> list[Timed]:
    """A row for each form, and number of tokens."""
    experts, found = made(layer, dtype), []
    for (weights, form), (tokens, calls) in product(own_forms(experts, dtype).items(), TOKENS.items()):
        given = [routed(layer, tokens, dtype) for _ in range(calls)]
        case = {"experts": named, "weights": weights, "tokens": str(tokens)}
        own = [partial(ALL_EXPERTS_FUNCTIONS["grouped_mm"], experts, *each) for each in given]
        found.append(in_turns(case, own, [partial(form, *each) for each in given], rounds))
        print(" | ".join(found[-1].row()), flush=True)
    return found


@torch.no_grad()
def main() -> None:
    """Measures and writes the table."""
    options = rounds_and_folder(__doc__, rounds=1)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found = [
        row
        for (named, layer), dtype in product(LAYERS.items(), (torch.bfloat16, torch.float32))
        for row in measure(layer, named, dtype, options.rounds)
    ]
    about = (
        "Time of a layer's experts: the function that transformers chooses by itself (`grouped_mm`) against "
        "`winnow.models.experts`, in the same type or in few bits"
    )
    publish("experts", "Experts", about, found, options)


if __name__ == "__main__":
    main()
