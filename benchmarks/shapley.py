"""Sliced Shapley values: what sharing one prefill saves, how good the estimates are, and what they are good for.

    python benchmarks/shapley.py            # everything, writes docs/results/shapley.* and docs/pictures/masking.png

Speed is measured on random-weight Llama shapes. The rest is about the bundled model, whose 16 KV heads form 65,536
coalitions: all of them are evaluated once (about 15 minutes, kept in a journal, so a second run takes none), which
gives exact Shapley values, and estimates of any number of samples by looking utilities up.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from end_to_end import SHAPES
from reporting import machine, markdown_table, write_results
from shapley_masking import HEADS, PLAYERS, draw_masking, mask_study, mask_table, percent
from shapley_speed import NEW, PROMPT, measure_speed, speed_table
from winnow import HeadScores
from winnow.bundled import HEADS_PATH, MODEL_PATH
from winnow.cache.fingerprint import ModelFingerprint
from winnow.errors import WinnowError
from winnow.estimate.cokv.bound import slicing_bound
from winnow.estimate.cokv.estimator import Estimate, estimate_values
from winnow.estimate.cokv.exact import exact_strata
from winnow.estimate.cokv.examples import generated_examples
from winnow.estimate.cokv.ledger import Ledger
from winnow.estimate.cokv.plan import Exhaustive
from winnow.estimate.cokv.recipe import CoalitionRecipe
from winnow.estimate.cokv.run import run_exhaustive
from winnow.estimate.cokv.sampling import PlayerSplits, default_sizes, strata_of
from winnow.estimate.cokv.settings import Terms
from winnow.estimate.errors import ShapleyError
from winnow.estimate.executors.local import LocalExecutor
from winnow.estimate.journal import Journal, fingerprint
from winnow.heads.compare import common_top
from winnow.models import ModelSource, ModelSpec, load_model, open_model

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
PICTURE = ROOT / "docs" / "pictures" / "masking.png"
JOURNAL = ROOT / "build" / "shapley-exact.journal.jsonl"
TERMS = Terms()
REPEATS = 200
SAMPLES = (15, 30, 60, 120, 240, 480)
"""Samples of a run, in the table of overlaps."""
COALITIONS = 512
"""Coalitions of one prompt, among which its prefill is shared in the table of speeds: 256 samples."""


class Game(NamedTuple):
    """The bundled model's heads, all coalitions evaluated."""

    utilities: Tensor
    """[2^16]"""
    strata: Tensor
    """[16, 16] SV[i, j]"""
    values: Tensor
    """[16] Shapley values"""

    def sliced(self, sizes: Sequence[int]) -> Tensor:
        """[16]: what an estimator with these sizes estimates."""
        return self.strata[:, [size - 1 for size in strata_of(sizes, PLAYERS)]].mean(dim=1)

    def estimated(self, splits: PlayerSplits, samples: int) -> Estimate:
        """The estimator's result, its utilities looked up instead of evaluated."""
        first = splits.first_parts(range(samples))
        bits = 2 ** torch.arange(PLAYERS)
        pairs = torch.stack([first, ~first], dim=1).long() @ bits
        return estimate_values(first, self.utilities[pairs])


def play_all(source: ModelSource, model: PreTrainedModel, journal: Path) -> Game:
    """Every coalition, from the journal as far as it has them."""
    examples, plan = generated_examples(), Exhaustive(PLAYERS, pairs=128)
    recipe = CoalitionRecipe(ModelSpec(source.name, "cpu", "float32"), HEADS, examples, TERMS, plan)
    config = {
        "task": "cokv-exact",
        "weights": ModelFingerprint.of(model).weights,
        "examples": fingerprint(examples),
        **TERMS.config(),
        **plan.config(),
    }
    ledger = Ledger.journaled(Journal.open(journal, config), plan, len(examples))

    def watch(done: int, total: int, _: Estimate | None) -> None:
        if done % 256 == 0:
            print(f"  {done} of {total} batches", flush=True)

    values, utilities = run_exhaustive(plan, LocalExecutor(recipe.worker(model, source.tokenizer)), ledger, watch)
    return Game(utilities, exact_strata(utilities), values)


SCHEMES: dict[str, tuple[tuple[int, ...], bool]] = {
    "n/2": ((PLAYERS // 2,), False),
    "n/2, balanced": ((PLAYERS // 2,), True),
    "n/8, n/4, 3n/8, n/2": (default_sizes(PLAYERS), False),
}
"""Name -> sizes, and whether splits are balanced."""


def sample_table(game: Game, counts: Sequence[int]) -> str:
    """As the paper's Table 6, means over many seeds; and what the overlap stands for."""
    body = []
    for name, (sizes, balanced) in SCHEMES.items():
        target = game.sliced(sizes)
        for count in counts:
            found = list(estimates(game, sizes, balanced, 2 * count))
            body.append([name, str(count), *_agreement(game, found, target), str(REPEATS - len(found) or "")])
    head = ["sizes", "samples", "overlap of runs", "overlap with exact", "rms error", "no estimate"]
    return markdown_table(head, body)


def _agreement(game: Game, found: Sequence[Estimate], target: Tensor) -> list[str]:
    """Overlap of the halves, overlap with the exact values, root mean square error."""
    if not found:
        return ["", "", ""]
    overlap = sum(each.overlap for each in found) / len(found)
    exact = sum(common_top(each.values, game.values, PLAYERS // 2) for each in found) / len(found)
    error = torch.stack([(each.values - target).square().mean() for each in found]).mean().sqrt()
    return [percent(overlap), percent(exact), f"{float(error):.4f}"]


def estimates(game: Game, sizes: tuple[int, ...], balanced: bool, count: int) -> Iterator[Estimate]:
    """One for every seed with which no head goes without a sample."""
    cycle = 2 * len(sizes)
    for seed in range(REPEATS):
        try:
            yield game.estimated(PlayerSplits(PLAYERS, sizes, seed, balanced), -(-count // cycle) * cycle)
        except ShapleyError:
            continue


def correlation_table(game: Game) -> str:
    """Agreement of coalition sizes (App. E.4)."""
    sizes = [2, 4, 6, 8, 10, 12, 14]
    matrix = torch.corrcoef(game.strata.T)
    body = [
        [str(one), *(f"{float(matrix[one - 1, other - 1]):.3f}" for other in sizes), overlap_with_exact(game, one)]
        for one in sizes
    ]
    return markdown_table(["size", *map(str, sizes), "top 50% of exact Shapley"], body)


def overlap_with_exact(game: Game, size: int) -> str:
    """Overlap of one stratum with the exact values."""
    return percent(common_top(game.strata[:, size - 1], game.values, PLAYERS // 2))


def head_table(game: Game, released: HeadScores) -> str:
    """Exact values of every head, and the estimates that ship."""
    sizes = default_sizes(PLAYERS)
    columns = [game.values, game.sliced(sizes), released.values.flatten(), game.sliced((PLAYERS // 2,))]
    body = [
        [f"{player // HEADS}-{player % HEADS}", *(f"{float(column[player]):+.4f}" for column in columns)]
        for player in range(PLAYERS)
    ]
    head = ["head", "Shapley value", "SSV, eighths", "estimate that ships", "SSV, n/2"]
    return markdown_table(head, body)


def distance_line(game: Game, released: HeadScores) -> str:
    """Distance of the estimate that ships from the values that it estimates."""
    values, target = released.values.flatten(), game.sliced(default_sizes(PLAYERS))
    correlation = torch.corrcoef(torch.stack([values, game.values]))[0, 1]
    return (
        f"* The estimate that ships ({released.samples:,} samples) differs from the exact sliced values by "
        f"{float((values - target).square().mean().sqrt()):.4f} (root mean square); its correlation with the Shapley "
        f"values is {float(correlation):.4f}, and {percent(common_top(values, game.values, PLAYERS // 2))} of their "
        "top 50% are the same."
    )


def bound_lines(game: Game) -> str:
    """Theorem 1 against what slicing really loses."""
    lines = []
    for sizes in ((PLAYERS // 2,), strata_of(default_sizes(PLAYERS), PLAYERS)):
        chosen = game.strata[:, [size - 1 for size in sizes]].mean(dim=1)
        loss = (chosen - game.values).abs()
        spread = game.strata.amax(dim=1) - game.strata.amin(dim=1)
        bounds = [slicing_bound(PLAYERS, len(sizes), float(each), 0.05) for each in spread]
        lines.append(
            f"{len(sizes)} of {PLAYERS} sizes: the largest difference is {float(loss.max()):.3f}; the bound of "
            f"Theorem 1 (delta 0.05) is {min(bounds):.2f} to {max(bounds):.2f}."
        )
    return "\n".join(f"* {line}" for line in lines)


def report(game: Game, released: HeadScores, speeds: str, masking: str) -> str:
    """The page."""
    distances = f"{distance_line(game, released)}\n{bound_lines(game)}"
    parts = {
        "": f"`python benchmarks/shapley.py` repeats this; [docs/shapley.md](../shapley.md) explains it. {machine()}",
        "Cost of a coalition": f"{SPEED_TEXT}\n\n{speeds}",
        "Samples": f"{SAMPLES_TEXT}\n\n{sample_table(game, SAMPLES)}",
        "Coalition sizes": f"{SIZES_TEXT}\n\n{correlation_table(game)}",
        "Exact values": f"{EXACT_TEXT}\n\n{head_table(game, released)}\n\n{distances}",
        "Masking heads": f"{MASKING_TEXT}\n\n{masking}\n\n![Masking heads](../pictures/masking.png)",
    }
    return "# Sliced Shapley values" + "".join(
        f"\n\n## {title}\n\n{text}" if title else f"\n\n{text}" for title, text in parts.items()
    )


SPEED_TEXT = f"""One prompt of {PROMPT:,} tokens, {NEW} new ones, random weights, float32. The model run again
prefills the prompt for every coalition; the shared prefill is counted once for {COALITIONS} coalitions."""

SAMPLES_TEXT = f"""Means over {REPEATS} seeds, 24 validation questions; utilities are looked up among those of all
65,536 coalitions. A sample is a split of the 16 heads: two coalitions. Overlap of the top 50% between two independent
runs of so many samples is the paper's Table 6; by chance it is 50%. The other columns are of both runs' mean: overlap
with the exact Shapley values, and the root mean square difference from the value that infinitely many samples give.
"No estimate": runs in which a head was in no coalition of some size. Eight of the heads have values near zero, so which
of them are in the top 50% is noise for long."""

SIZES_TEXT = """Correlation of the heads' expected complementary contributions between coalition sizes, exact (App.
E.4). Sizes j and n - j correlate perfectly, which is no coincidence (see [docs/shapley.md](../shapley.md))."""

EXACT_TEXT = """All coalitions evaluated. Eighths are sizes 2, 4, 6, 8 of 16, and with them 10, 12, 14. Sliced values
are shifted against Shapley values by the sizes left out, above all by size n, which gives every head the same."""

MASKING_TEXT = """Accuracy on documents that no score was estimated from, with the k most important (top) or least
important (lowest) heads reduced to their window of 8 tokens. Good scores lose much with the top heads and nothing with
the lowest."""


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--journal", type=Path, default=JOURNAL, help="where evaluated coalitions are kept")
    parser.add_argument("--shapes", default="small,large", help=f"of {', '.join(SHAPES)}, for the speed")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    print("speed", flush=True)
    speeds = [measure_speed(SHAPES[name], sizes=(16, 64, 128)) for name in args.shapes.split(",")]
    print("all coalitions of the bundled model", flush=True)
    source = open_model(MODEL_PATH)
    model = load_model(source, "cpu", "float32")
    game = play_all(source, model, args.journal)
    released = HeadScores.load(HEADS_PATH / "cokv.safetensors")
    tables = {"CoKV": released.values.flatten(), "exact Shapley": game.values, **other_tables()}
    print("masking", flush=True)
    full, rows = mask_study(source, model, tables)
    # What ships and the exact values would lie on top of each other.
    draw_masking(PICTURE, full, [row for row in rows if row.name != "exact Shapley"])
    text = report(game, released, speed_table(speeds, COALITIONS), mask_table(full, rows))
    records: list[dict[str, Any]] = [
        *({"speed": speed._asdict()} for speed in speeds),
        {
            "shapley": game.values.tolist(),
            "strata": game.strata.tolist(),
            "released": released.values.flatten().tolist(),
        },
        *({"masking": row._asdict(), "full": full} for row in rows),
    ]
    write_results(args.out, "shapley", text + "\n", records)
    print(text)


def other_tables() -> dict[str, Tensor]:
    """HeadKV's scores, where they are."""
    path = HEADS_PATH / "headkv-r2.safetensors"
    return {"HeadKV-R2": HeadScores.load(path).grouped(HEADS).values.flatten()} if path.exists() else {}


if __name__ == "__main__":
    try:
        main()
    except WinnowError as problem:
        sys.exit(str(problem))
