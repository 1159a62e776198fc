"""Time per token, prefill, bytes and likelihood of a model by its weights, against bfloat16 in torch's own layers.

    python benchmarks/weights.py MODEL                # writes docs/results/weights.*

All variants are in memory at once and take turns, step by step; medians count. All but the reference, which is what
transformers does, decode by graphs, as Winnow's answers do. Libraries are measured where they are
installed, as transformers applies them but with Winnow's norms, rotary embedding and gates, which all rows have but the
reference: torchao (pip install "winnow-kv[quantized]") and optimum-quanto.
"""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers import AutoModelForCausalLM, PreTrainedModel

import winnow
from reporting import machine, markdown_table, write_results
from winnow.commands.model_names import model_name
from winnow.kernels.linear import outruns_torch
from winnow.models import ModelSource, load_model, loading, open_model, rounding

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = "bfloat16, torch's layers"
OWN_PARTS = {"norms": "normalize_in_one_pass", "rotary embedding": "embed_in_one_pass", "gates": "gate_in_one_pass"}
"""Parts that loading replaces, and the function that does it."""
LIKELIHOOD_TOKENS = 1024
WARM_UP = 4
"""Steps that are not timed: those up to the first that is replayed as all later ones are."""
AT_A_TIME = 128
"""Tokens whose distributions are compared at a time."""


@dataclass
class Variant:
    """A model with weights of one kind, and what was measured of it."""

    name: str
    model: PreTrainedModel
    likelihood: float = math.nan
    """Mean of -log p of the text's tokens."""
    divergence: float = math.nan
    """Mean over the text's tokens of the KL divergence from the first variant's distribution of the next one."""
    prefills: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)


def variants(source: ModelSource, skipped: list[str]) -> list[Variant]:
    """The reference, what is loaded without options, float32, few bits, and those of the libraries that are here.

    skipped: words of those to leave out.
    """

    def small() -> PreTrainedModel:
        return load_model(source, "cpu", weights="int4")

    kinds: dict[str, Callable[[], PreTrainedModel]] = {
        REFERENCE: lambda: _without(loading, "use_own_layers", lambda: load_model(source, "cpu", "bfloat16")),
        "bfloat16": lambda: load_model(source, "cpu", "bfloat16"),
        "float32": lambda: load_model(source, "cpu", "float32"),
        "`--weights int8`": lambda: load_model(source, "cpu", weights="int8"),
        "`--weights int4`": small,
    }
    if source.gguf:
        kinds["`--weights gguf`"] = lambda: load_model(source, "cpu", weights="gguf")
    for what, function in OWN_PARTS.items():
        kinds[f"`--weights int4`, with the model's own {what}"] = partial(_without, loading, function, small)
    if outruns_torch():
        kinds["`--weights int4`, in pages of the usual size"] = lambda: _without(rounding, "LargePages", small)
    if find_spec("torchao"):
        kinds["torchao, Int8WeightOnlyConfig"] = lambda: _by_torchao(source)
    if find_spec("optimum") and find_spec("optimum.quanto"):
        kinds["quanto, int8"] = lambda: _by_quanto(source)
    wanted = {name: load for name, load in kinds.items() if not any(word in name for word in skipped)}
    return [Variant(name, load()) for name, load in wanted.items()]


def _without(owner: object, name: str, load: Callable[[], PreTrainedModel]) -> PreTrainedModel:
    """The model as it would be if the function of that name did nothing."""
    with patch.object(owner, name, lambda *_: None):
        return load()


def _by_torchao(source: ModelSource) -> PreTrainedModel:
    from torchao.quantization import Int8WeightOnlyConfig
    from transformers import TorchAoConfig

    return _by_transformers(source, TorchAoConfig(Int8WeightOnlyConfig()))


def _by_quanto(source: ModelSource) -> PreTrainedModel:
    from transformers import QuantoConfig

    return _by_transformers(source, QuantoConfig(weights="int8"))


def _by_transformers(source: ModelSource, config: object) -> PreTrainedModel:
    model = AutoModelForCausalLM.from_pretrained(source.name, dtype=torch.bfloat16, quantization_config=config)
    model.set_attn_implementation("winnow")
    for function in OWN_PARTS.values():
        getattr(loading, function)(model)
    return model.eval()


def held(model: PreTrainedModel) -> int:
    """Bytes of all parameters."""
    return sum(_bytes(parameter) for parameter in model.parameters())


def _bytes(weight: Tensor) -> int:
    if not is_traceable_wrapper_subclass(weight):
        return weight.nbytes
    names, _ = weight.__tensor_flatten__()
    return sum(_bytes(getattr(weight, name)) for name in names)


@torch.no_grad()
def measure(found: list[Variant], ids: Tensor, budget: str, steps: int, rounds: int) -> None:
    """Fills in what is measured: prefills in turns, then decoding steps in turns, on a compressed cache each."""
    text = ids[:1, :LIKELIHOOD_TOKENS]
    reference = None
    for variant in found:
        logits = variant.model(text).logits[0]
        reference = logits if reference is None else reference
        variant.likelihood = float(cross_entropy(logits[:-1].float(), text[0, 1:]))
        variant.divergence = divergence(logits, reference)
    caches = []
    for number in range(rounds):
        for variant in found:
            cache = winnow.CompressedCache(variant.model, f"adakv @ {budget}")
            start = perf_counter()
            variant.model(ids, cache=cache, logits_to_keep=1)
            variant.prefills.append(perf_counter() - start)
            if number == rounds - 1:
                caches.append(cache)
    with ExitStack() as graphs:
        for variant in found[1:]:
            graphs.enter_context(winnow.step_graphs(variant.model))
        for step in range(WARM_UP + steps):
            for variant, cache in zip(found, caches, strict=True):
                start = perf_counter()
                variant.model(ids[:, -1:], cache=cache)
                if step >= WARM_UP:
                    variant.steps.append(perf_counter() - start)


def divergence(logits: Tensor, reference: Tensor) -> float:
    """KL of distributions of the next token from those of a reference, both as logits [N, V]; the mean, in nats."""
    found = 0.0
    for ours, theirs in zip(logits.split(AT_A_TIME), reference.split(AT_A_TIME), strict=True):
        one, other = (each.float().log_softmax(dim=-1) for each in (ours, theirs))
        found += float((other.exp() * (other - one)).sum())
    return found / len(logits)


def row(variant: Variant, reference: Variant) -> list[str]:
    """A line of the table."""
    step, prefill = median(variant.steps), median(variant.prefills)
    return [
        variant.name,
        f"{held(variant.model) / 1e6:,.0f} MB",
        f"{step * 1e3:.1f} ms",
        f"{median(reference.steps) / step:.2f}x",
        f"{prefill:.2f} s",
        f"{median(reference.prefills) / prefill:.2f}x",
        f"{variant.likelihood:.3f}",
        f"{variant.divergence:.4f}",
    ]


def main() -> None:
    """Measures and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="directory, GGUF file or Hugging Face name")
    parser.add_argument("--text", type=Path, default=ROOT / "examples" / "town.txt")
    parser.add_argument("--tokens", type=int, default=2048, help="of the prompt; the text is repeated")
    parser.add_argument("--rows", type=int, default=1, help="of the batch; each is the same prompt")
    parser.add_argument("--skip", nargs="*", default=[], help="weights to leave out, like float32 for want of memory")
    parser.add_argument("--budget", default="5%", help="of the cache while decoding")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3, help="prefills")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results", help="folder of the results")
    parser.add_argument("--page", default="weights", help="name of the results, of which there may be several")
    options = parser.parse_args()
    source = open_model(options.model)
    text = source.tokenizer(options.text.read_text(encoding="utf-8"), return_tensors="pt").input_ids
    ids = text.repeat(1, -(-options.tokens // text.shape[1]))[:, : options.tokens]
    ids = ids.repeat(options.rows, 1)
    found = variants(source, options.skip)
    measure(found, ids, options.budget, options.steps, options.rounds)
    head = ["weights", "parameters", "per token", "of the first", "prefill", "of the first", "-log p", "KL"]
    table = markdown_table(head, [row(variant, found[0]) for variant in found])
    print(table)
    # Where the page is written says nothing of what was measured.
    elsewhere = {"--out", str(options.out), f"--out={options.out}"}
    given = ["MODEL" if each == options.model else each for each in sys.argv[1:] if each not in elsewhere]
    command = f"python benchmarks/weights.py {shlex.join(given)}"
    about = (
        f"# Weights of fewer bits\n\n`{command}` on {model_name(source)}. {machine()} A "
        f"prompt of {options.tokens:,} tokens, {options.rows} at a time, decoded from a cache of {options.budget} "
        "(adakv), logits of one token, by [graphs](../graphs.md) but for the first row; "
        f"medians of {options.steps} steps and {options.rounds} prefills that took turns. Above 1x is faster than "
        f"the first row. -log p: mean over the first {LIKELIHOOD_TOKENS:,} tokens of a text, less is better. KL: "
        "mean divergence of the next token's distribution there from that of the first row.\n\n"
    )
    records = [
        {
            "weights": variant.name,
            "bytes": held(variant.model),
            "step_s": median(variant.steps),
            "prefill_s": median(variant.prefills),
            "nats_per_token": variant.likelihood,
            "divergence": variant.divergence,
        }
        for variant in found
    ]
    write_results(options.out, options.page, about + table + "\n", records)


if __name__ == "__main__":
    main()
