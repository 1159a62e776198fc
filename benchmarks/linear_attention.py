"""Linear attention of a token and of prompts: transformers' functions of torch's operators against Winnow's kernels.

    python benchmarks/linear_attention.py        # writes docs/results/linear_attention-VENDOR.*

The gated delta rule, short convolutions and gated norms of Qwen3.5, Kimi Delta Attention in the shape of
Kimi-Linear-48B-A3B, and the state scan of Falcon-H1, layer by layer, and whole models with random weights in the
shapes of Qwen3.5-0.8B, LFM2-350M and Falcon-H1-0.5B: a prompt, and a token after it by a graph of its step. Two
threads.
"""

from __future__ import annotations

import copy
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.falcon_h1 import modeling_falcon_h1 as falcon
from transformers.models.kimi_linear import modeling_kimi_linear as kimi
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen

import winnow
from hybrid_shapes import configurations
from random_models import DTYPE, random_model
from reporting import machine, markdown_table, of_this_processor, rounds_and_folder, write_results
from winnow.models.convolutions import ConvolutionByKernel, StepByKernel
from winnow.models.delta import DeltaByKernel
from winnow.models.gated_norms import CompiledGatedNorm
from winnow.models.scans import ScanByKernel, ScanStepByKernel
from within_steps import OWN, WINNOWS, Timed, in_turns

THREADS = 2
DIM, TAPS = 128, 4
HEADS = ((16, 16), (16, 32))
"""Key and value heads of Qwen3.5's models of 0.8B and 2B, and of 4B and 9B."""
KIMIS_HEADS = 32
"""Heads of Kimi-Linear-48B-A3B, of keys and of values."""
SCANNED = (24, 64, 128)
"""Heads, their channels, and the size of a state of Falcon-H1-0.5B."""
TOKENS = (1, 512, 2048)
LAYERS = {1: 18, 512: 3, 2048: 1}
"""Layers that take turns, by tokens: as many as a model has, or as a prompt leaves time for."""
PROMPT, STEPS, METHOD = 512, 24, "snapkv @ 128"

Call = Callable[[], object]


@dataclass(frozen=True)
class Model:
    """Seconds of a prompt and of a token, and the error of logits, by whose layers."""

    model: str
    weights: str
    prompt: dict[str, float]
    token: dict[str, float]
    error: dict[str, float]
    """Norm of the difference of a prompt's logits from those of transformers in fp32, as a share of these."""

    def row(self) -> list[str]:
        """A line of the table."""
        cells = [self.model, self.weights]
        for seconds in (self.prompt, self.token):
            own, ours = seconds[OWN], seconds[WINNOWS]
            cells += [f"{1e3 * own:,.1f} ms", f"{1e3 * ours:,.1f} ms, {own / ours:.2f}x"]
        return [*cells, f"{self.error[OWN]:.2%}", f"{self.error[WINNOWS]:.2%}"]


def parts(rounds: int) -> list[Timed]:
    """Every function with every number of tokens."""
    found = []
    for heads in HEADS:
        for tokens in TOKENS:
            case = {"heads": f"{heads[0]}/{heads[1]}, D {DIM}", "tokens": f"{tokens:,}"}
            for name, (own, ours) in contenders(heads, tokens).items():
                found.append(in_turns({"function": name, **case}, own, ours, rounds))
                print(found[-1].row(), flush=True)
    # transformers' function takes several gigabytes for longer prompts.
    for tokens in TOKENS[:2]:
        case = {"function": "Kimi Delta Attention", "heads": f"{KIMIS_HEADS}, D {DIM}", "tokens": f"{tokens:,}"}
        found.append(in_turns(case, *kimis(tokens), rounds))
        print(found[-1].row(), flush=True)
    count, dim, size = SCANNED
    for tokens in TOKENS:
        case = {"function": "state scan", "heads": f"{count}, {dim} x {size}", "tokens": f"{tokens:,}"}
        found.append(in_turns(case, *scans(tokens), rounds))
        print(found[-1].row(), flush=True)
    return found


def kimis(tokens: int) -> tuple[list[Call], list[Call]]:
    """Calls of Kimi Linear's functions and of the kernel."""
    own = kimi.recurrent_kimi_delta_attention if tokens == 1 else kimi.chunk_kimi_delta_attention
    kernel = DeltaByKernel(own, per_channel=True)
    of_own, of_kernel = list[Call](), list[Call]()
    for _ in range(LAYERS[tokens]):
        layer = inputs((KIMIS_HEADS, KIMIS_HEADS), tokens)
        query, key, value, _, rates = layer.delta
        given = query, key, value, -torch.rand(key.shape), rates
        of_own.append(partial(own, *given, **layer.state()))
        of_kernel.append(partial(kernel, *given, **layer.state()))
    return of_own, of_kernel


def scans(tokens: int) -> tuple[list[Call], list[Call]]:
    """Calls of Falcon-H1's functions and of the kernel."""
    own = falcon.mamba2_selective_state_update if tokens == 1 else falcon.mamba2_chunk_scan
    kernel = (ScanStepByKernel if tokens == 1 else ScanByKernel)(own)
    arguments = [of_a_scan(tokens) for _ in range(LAYERS[tokens])]
    of_own: list[Call] = [partial(own, *given, **named) for given, named in arguments]
    of_kernel: list[Call] = [partial(kernel, *given, **named) for given, named in arguments]
    return of_own, of_kernel


def of_a_scan(tokens: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Random arguments in bf16, as a layer gives them."""
    heads, dim, size = SCANNED
    mixed = torch.randn(1, tokens, heads * dim + 2 * size).bfloat16()
    inputs, enter, leave = mixed.split([heads * dim, size, size], -1)
    steps, rates = torch.randn(1, tokens, heads).bfloat16(), -torch.rand(heads)
    biases, through = torch.randn(2, heads).bfloat16()
    if tokens > 1:
        shaped = inputs.view(1, tokens, heads, dim), steps, rates, *(each.unsqueeze(2) for each in (enter, leave)), 128
        return shaped, {"D": through, "dt_bias": biases, "dt_softplus": True, "return_final_states": True}
    state = torch.randn(1, heads, dim, size)
    of_channels = [each[..., None].expand(*each.shape, dim) for each in (steps[:, 0], through, biases)]
    shaped = inputs.view(1, heads, dim), of_channels[0], rates[:, None, None].expand(heads, dim, size), enter, leave
    return (state, *shaped), {"D": of_channels[1], "dt_bias": of_channels[2], "dt_softplus": True}


def contenders(heads: tuple[int, int], tokens: int) -> dict[str, tuple[list[Call], list[Call]]]:
    """Calls of as many layers as take turns, by function."""
    layers = [inputs(heads, tokens) for _ in range(LAYERS[tokens])]
    return {
        "gated delta rule": (
            [partial(own_delta(tokens), *each.delta, **each.state()) for each in layers],
            [partial(DeltaByKernel(own_delta(tokens)), *each.delta, **each.state()) for each in layers],
        ),
        "convolution": (
            [partial(own_convolution(tokens), *each.convolution(tokens)) for each in layers],
            [partial(kernel_of_convolution(tokens), *each.convolution(tokens)) for each in layers],
        ),
        "gated norm": (
            [partial(each.norm, *each.gated) for each in layers],
            [partial(CompiledGatedNorm(each.norm), *each.gated) for each in layers],
        ),
    }


def own_delta(tokens: int) -> Callable[..., object]:
    """The model's own function for so many tokens."""
    return qwen.torch_recurrent_gated_delta_rule if tokens == 1 else qwen.torch_chunk_gated_delta_rule


def own_convolution(tokens: int) -> Callable[..., object]:
    """The same for convolutions."""
    return qwen.causal_conv1d_update if tokens == 1 else qwen.causal_conv1d_fn


def kernel_of_convolution(tokens: int) -> Callable[..., object]:
    """Winnow's in its place."""
    return (StepByKernel if tokens == 1 else ConvolutionByKernel)(own_convolution(tokens))


@dataclass(frozen=True)
class Inputs:
    """Those of a layer in bf16."""

    delta: tuple[Tensor, ...]
    mixed: Tensor
    weight: Tensor
    norm: nn.Module
    gated: tuple[Tensor, Tensor]

    def state(self) -> dict[str, Any]:
        """The arguments beside inputs; a layer goes on from a state of its own."""
        value, key = self.delta[2], self.delta[1]
        state = 0.01 * torch.randn(1, value.shape[2], key.shape[-1], value.shape[-1])
        return {"initial_state": state, "output_final_state": True, "use_qk_l2norm_in_kernel": True}

    def convolution(self, tokens: int) -> tuple[object, ...]:
        """The arguments of either function."""
        past = [torch.randn(1, self.mixed.shape[1], TAPS).bfloat16()] if tokens == 1 else []
        return self.mixed, *past, self.weight, None, "silu"


def inputs(heads: tuple[int, int], tokens: int) -> Inputs:
    """Random ones, which lie as a layer's projections leave them."""
    keys, values = heads
    mixed = torch.randn(1, tokens, (2 * keys + values) * DIM).bfloat16()
    query, key, value = (
        each.reshape(1, tokens, -1, DIM) for each in mixed.split([keys * DIM, keys * DIM, values * DIM], -1)
    )
    decays, rates = -torch.rand(1, tokens, values), torch.rand(1, tokens, values).bfloat16()
    norm = qwen.Qwen3_5RMSNormGated(DIM).bfloat16()
    rows = tokens * values
    gated = torch.randn(rows, DIM).bfloat16(), torch.randn(rows, DIM).bfloat16()
    weight = torch.randn(mixed.shape[-1], TAPS).bfloat16()
    return Inputs((query, key, value, decays, rates), mixed.mT, weight, norm, gated)


def models(rounds: int) -> list[Model]:
    """Whole models with Winnow's layers but for those of states, and with these."""
    found = []
    for name, config in configurations().items():
        for weights in (DTYPE, "int4"):
            found.append(measure(name, config, weights, rounds))
            print(found[-1].row(), flush=True)
    return found


def measure(name: str, config: PreTrainedConfig, weights: str, rounds: int) -> Model:
    """One model: prompts, and then tokens, take turns."""
    ours = random_model(config, weights)
    contenders = {OWN: without_kernels(ours), WINNOWS: ours}
    ids = torch.randint(config.vocab_size, (1, PROMPT), generator=torch.Generator().manual_seed(0))
    exact = in_fp32(config, ids)
    caches = {whose: winnow.CompressedCache(model, METHOD) for whose, model in contenders.items()}
    logits = {whose: model(ids, cache=caches[whose]).logits[0] for whose, model in contenders.items()}
    decoders = {whose: winnow.GraphedDecoder(model, caches[whose]) for whose, model in contenders.items()}
    prompts: dict[str, list[float]] = {whose: [] for whose in contenders}
    tokens: dict[str, list[float]] = {whose: [] for whose in contenders}
    token = torch.tensor([11])
    for decoder in decoders.values():
        for _ in range(3):
            decoder.step(token)
    for _ in range(rounds):
        for whose, model in contenders.items():
            prompts[whose].append(timed(partial(read, model, ids)))
            tokens[whose] += [timed(partial(decoders[whose].step, token)) for _ in range(STEPS)]
    error = {whose: float((found.float() - exact).norm() / exact.norm()) for whose, found in logits.items()}
    return Model(name, weights, medians(prompts), medians(tokens), error)


def in_fp32(config: PreTrainedConfig, ids: Tensor) -> Tensor:
    """Logits [N, V] of transformers' model with the same weights before they are rounded to fewer bits."""
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval().float()
    found: Tensor = model(ids, use_cache=False).logits[0]
    return found


def without_kernels(model: PreTrainedModel) -> PreTrainedModel:
    """A copy that has the same weights, and the linear attention of transformers."""
    memo = {id(each): each for each in (*model.parameters(), *model.buffers())}
    plain = copy.deepcopy(model, memo)
    for layer in plain.modules():
        if any(name in layer._modules for name in ("conv1d", "conv")) and hasattr(type(layer), "_own_class"):
            layer.__class__ = type(layer)._own_class
        for name, norm in list(layer.named_children()):
            if isinstance(norm, CompiledGatedNorm):
                setattr(layer, name, own_norm(norm))
    return plain


def own_norm(norm: CompiledGatedNorm) -> nn.Module:
    """The gated norm that was there."""
    made = qwen.Qwen3_5RMSNormGated(len(norm.weight), norm.variance_epsilon)
    made.weight = norm.weight
    return made


def read(model: PreTrainedModel, ids: Tensor) -> None:
    """A prompt into a new cache."""
    model(ids, cache=winnow.CompressedCache(model, METHOD), logits_to_keep=1)


def timed(call: Call) -> float:
    """Seconds of a call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def medians(times: dict[str, list[float]]) -> dict[str, float]:
    """By whose they are."""
    return {whose: median(taken) for whose, taken in times.items()}


def publish(found: Sequence[Timed], whole: Sequence[Model], options: Namespace) -> None:
    """Prints both tables and writes their page."""
    timed = [f"{whose}, {when}" for when in ("after a read", "again") for whose in (OWN, WINNOWS)]
    functions = markdown_table([*found[0].case, *timed], [each.row() for each in found])
    head = ["model", "weights", *(f"{what}, {whose}" for what in ("prompt", "token") for whose in (OWN, WINNOWS))]
    table = markdown_table([*head, f"error, {OWN}", f"error, {WINNOWS}"], [each.row() for each in whole])
    text = (
        f"# Linear attention\n\n`python benchmarks/linear_attention.py`. {machine()} Functions of a layer in bf16, of "
        "transformers and by the kernels, each after a read of 16 MB, as a layer's weights are read between two of a "
        f"token, and once more without. Above 1x is faster than a model's own.\n\n{functions}\n\n"
        f"Whole models with random weights: a prompt of {PROMPT} tokens, and a token after it by a "
        f"[graph of its step](../graphs.md), over a cache of `{METHOD}`. *A model's own*: linear attention, "
        "convolutions and gated norms by transformers' functions, all else, as graphs, norms, MLPs and linear layers, "
        "by Winnow's. *Error*: the norm of the difference of a prompt's logits from transformers' in fp32, as a "
        f"share of these. Both took turns; medians. Vocabularies are cut to about 64 thousand tokens.\n\n{table}\n"
    )
    print(text)
    results = [*map(asdict, found), *map(asdict, whole)]
    write_results(options.out, of_this_processor("linear_attention"), text, results)


@torch.no_grad()
def main() -> None:
    """Measures and writes the tables."""
    options = rounds_and_folder(__doc__, rounds=5)
    torch.set_num_threads(THREADS)
    publish(parts(options.rounds), models(options.rounds), options)


if __name__ == "__main__":
    main()
