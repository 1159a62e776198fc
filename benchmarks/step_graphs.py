"""Time of a token of models on this processor, whose steps are ordinary or by graphs (`winnow.step_graphs`).

    python benchmarks/step_graphs.py MODEL...            # writes docs/results/step_graphs-VENDOR.*
    python benchmarks/step_graphs.py MODEL... --mixture  # and of a small mixture of experts with random weights

Both kinds of steps follow the same prompt, over caches of their own, and take turns, some tokens each; medians count.
What a capture takes over an ordinary step is told in the tokens that earn it back.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median

import torch
from torch import Tensor
from transformers import GraniteMoeConfig, PreTrainedModel

import winnow
from random_models import DTYPE, random_model
from reporting import RESULTS, machine, markdown_table, of_this_processor, write_results
from winnow.commands.model_names import model_name
from winnow.models import ModelSource, load_model, open_model

METHOD, PROMPT, WORDS = "adakv @ 5%", 512, 2000
TURN = 8
"""Tokens of each kind at a time."""
MIXTURE = "mixture"
"""A small one, in the shape of granite-3.0-1b-a400m: 8 of 32 experts a layer."""


@dataclass(frozen=True)
class Row:
    """Milliseconds of a step of a model's weights, by rows of a batch."""

    model: str
    weights: str
    rows: int
    ordinary: float
    graph: float
    capture: float
    """The step that is captured."""
    same: bool
    """True if logits of both kinds were the same to the bit."""

    @property
    def earned_back(self) -> float:
        """Replayed tokens that save what a capture takes."""
        return max(0.0, self.capture - self.ordinary) / max(1e-9, self.ordinary - self.graph)


def timed(step: Callable[[], Tensor]) -> float:
    """Milliseconds of a step."""
    begin = time.perf_counter()
    step()
    return 1000 * (time.perf_counter() - begin)


@torch.no_grad()
def measure(model: PreTrainedModel, rows: int, rounds: int) -> tuple[list[float], list[float], float, bool]:
    """Times of ordinary steps and of replays, in turns, that of a capture, and whether logits were the same."""
    ids = torch.randint(model.config.vocab_size, (1, PROMPT), generator=torch.Generator().manual_seed(0))
    cache = winnow.CompressedCache(model, METHOD)
    model(ids, cache=cache, logits_to_keep=1)
    cache.batch_repeat_interleave(rows)
    other, token = copy.deepcopy(cache), torch.full((rows, 1), 11)

    def ordinary() -> Tensor:
        found: Tensor = model(token, cache=cache).logits[:, -1]
        return found

    decoder = winnow.GraphedDecoder(model, other, room=(rounds + 1) * TURN)
    same = [torch.equal(ordinary(), decoder.step(token))]
    replayed: Callable[[], Tensor] = partial(decoder.step, token)
    captured = timed(replayed)
    ordinary()
    same += [torch.equal(ordinary(), decoder.step(token)) for _ in range(TURN - 2)]
    found: tuple[list[float], list[float]] = [], []
    for _ in range(rounds):
        found[0].extend(timed(ordinary) for _ in range(TURN))
        found[1].extend(timed(replayed) for _ in range(TURN))
    return *found, captured, all(same)


def loaded(source: ModelSource, weights: str) -> PreTrainedModel:
    """A model with weights of a kind."""
    if weights == DTYPE:
        return load_model(source, "cpu", DTYPE)
    return load_model(source, "cpu", weights=weights)


def mixture(weights: str) -> PreTrainedModel:
    """The small mixture with weights of a kind, which are random."""
    config = GraniteMoeConfig(
        vocab_size=49155,
        hidden_size=1024,
        intermediate_size=512,
        num_hidden_layers=24,
        num_attention_heads=16,
        num_key_value_heads=8,
        num_local_experts=32,
        num_experts_per_tok=8,
        tie_word_embeddings=True,
    )
    return random_model(config, weights)


def page(rows: list[Row], command: str) -> str:
    """The table, and how it came about."""
    head = ["model", "weights", "rows", "ordinary", "by a graph", "as fast", "capture", "earned back by", "same logits"]
    body = [
        [
            row.model,
            row.weights,
            str(row.rows),
            f"{row.ordinary:.1f} ms",
            f"{row.graph:.1f} ms",
            f"{row.ordinary / row.graph:.2f}x",
            f"{row.capture:.0f} ms",
            f"{row.earned_back:.0f} tokens",
            "yes" if row.same else "no",
        ]
        for row in rows
    ]
    return (
        f"# Steps by graphs on a CPU\n\n`{command}`: a token of every row after a prompt of {PROMPT} tokens, over a "
        f"cache of `{METHOD}`. Ordinary steps and replays took turns; medians. A *capture* is the step that is "
        f"recorded, whose extra time so many replayed tokens save. *Same logits*: to the bit. The *mixture* has random "
        f"weights in the shape of granite-3.0-1b-a400m, 8 of 32 experts a layer. {machine()}\n\n"
        f"{markdown_table(head, body)}\n"
    )


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="directories, GGUF files or Hugging Face names")
    parser.add_argument("--mixture", action="store_true", help="also a small mixture of experts with random weights")
    parser.add_argument("--weights", nargs="+", default=[DTYPE, "int8", "int4"])
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args()
    sources = {model_name(source): source for source in map(open_model, options.models)}
    makers: dict[str, Callable[[str], PreTrainedModel]] = {
        name: partial(loaded, source) for name, source in sources.items()
    }
    if options.mixture:
        makers[MIXTURE] = mixture
    rows = []
    for (name, make), weights in product(makers.items(), options.weights):
        if make is mixture and weights == "gguf":
            continue  # there is no file
        model = make(weights)
        for batch in options.rows:
            ordinary, graph, captured, same = measure(model, batch, options.rounds)
            found = Row(name, weights, batch, median(ordinary), median(graph), captured, same)
            print(found, flush=True)
            rows.append(found)
    named = ["MODEL" for _ in options.models] + ["--mixture"] * options.mixture
    command = " ".join(["python benchmarks/step_graphs.py", *named, "--weights", *options.weights])
    text = page(rows, command)
    print(text)
    write_results(options.out, of_this_processor("step_graphs"), text, [asdict(row) for row in rows])


if __name__ == "__main__":
    main()
