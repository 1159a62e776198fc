"""Train the bundled model from scratch, on one machine without a GPU.

One command repeats it:

    python training/train_bundled.py --out src/winnow/bundled

The run resumes from its last checkpoint. It refuses one of another run. Batches depend on the seed and the
step alone, so a resumed run sees the batches that an unbroken one would see.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from batches import Batch, sample_batch
from forward import supervised_logits
from model import build_model, build_tokenizer
from optimizer import Muon, split_parameters
from quick_eval import teacher_forced_scores
from torch.nn import functional
from transformers import PreTrainedModel

ROOT = Path(__file__).resolve().parent.parent
# Text lengths of the curriculum; each is unlocked by mastering the one before.
LENGTHS = (96, 192, 384, 768, 1024, 2048)


# Options that change nothing of what is learned, so that a run may be resumed with others.
FREE = ("out", "work", "threads", "save_seconds", "eval_steps")


@dataclass
class Progress:
    """State of the training loop besides weights and optimizer state."""

    step: int = 0
    level: int = 0
    accuracy: float = 0.0
    level_step: int = 0
    seconds: float = 0.0


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "src" / "winnow" / "bundled")
    parser.add_argument("--work", type=Path, default=ROOT / "training" / "checkpoints")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2350)
    parser.add_argument("--decay-steps", type=int, default=540)
    parser.add_argument("--warmup", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=4096, help="least tokens of a batch")
    parser.add_argument("--muon-rate", type=float, default=0.02)
    parser.add_argument("--adam-rate", type=float, default=0.003)
    parser.add_argument("--promote", type=float, default=0.88)
    parser.add_argument("--max-level", type=int, default=len(LENGTHS) - 1)
    parser.add_argument("--min-level-steps", type=int, default=60)
    parser.add_argument("--max-level-steps", type=int, default=450)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--save-seconds", type=float, default=180.0)
    parser.add_argument("--eval-steps", type=int, default=250)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--intermediate", type=int, default=384)
    parser.add_argument("--tie", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--rope-pattern", default="1010")
    parser.add_argument("--seeding", type=float, default=6.0)
    return parser.parse_args()


def rate_factor(step: int, arguments: argparse.Namespace) -> float:
    """Scale of the learning rates: a short warm-up, constant, then linear to zero."""
    rising = (step + 1) / arguments.warmup
    falling = (arguments.steps - step) / max(1, arguments.decay_steps)
    return max(0.0, min(1.0, rising, falling))


def choose_length(rng: random.Random, level: int) -> int:
    """Mostly the newest length, sometimes an earlier one so that it stays good."""
    return LENGTHS[level if rng.random() < 0.4 else rng.randint(0, level)]


def batch_loss(model: PreTrainedModel, batch: Batch) -> tuple[torch.Tensor, float | None]:
    """Weighted loss, and the accuracy on words found for questions if there are any."""
    logits, (rows, places) = supervised_logits(model, batch.inputs, batch.weights > 0)
    targets, weights = batch.targets[rows, places], batch.weights[rows, places]
    losses = functional.cross_entropy(logits, targets, reduction="none")
    found = weights == 1
    right = logits.argmax(-1) == targets
    accuracy = right[found].float().mean().item() if found.any() else None
    return (losses * weights).sum() / weights.sum(), accuracy


def share_machine(threads: int, most: int) -> int:
    """Use fewer threads while others work: waiting for a busy core costs more."""
    load = os.getloadavg()[0]
    if load > most + 1.5:
        return 1
    return most if load < most - 0.5 else threads


def promote(progress: Progress, accuracy: float, args: argparse.Namespace) -> bool:
    """Track the accuracy at the newest length and unlock the next one when mastered."""
    progress.accuracy = 0.95 * progress.accuracy + 0.05 * accuracy
    progress.level_step += 1
    mastered = progress.accuracy > args.promote and progress.level_step >= args.min_level_steps
    # A longer text holds more of what is hard, so that moving on beats waiting for long.
    ready = mastered or progress.level_step >= args.max_level_steps
    if not ready or progress.level >= args.max_level:
        return False
    progress.level += 1
    progress.accuracy, progress.level_step = 0.0, 0
    return True


def recipe(args: argparse.Namespace) -> dict[str, object]:
    """Seed, architecture and schedule: everything that weights depend on."""
    return {name: value for name, value in vars(args).items() if name not in FREE}


def check_recipe(path: Path, saved: dict[str, object], wanted: dict[str, object]) -> None:
    """Refuse to resume another run, naming what differs."""
    told = [
        f"--{name.replace('_', '-')} (there {saved.get(name)}, now {wanted.get(name)})"
        for name in {**wanted, **saved}
        if saved.get(name) != wanted.get(name)
    ]
    if told:
        raise SystemExit(
            f"{path} is of another run, different in {', '.join(told)}: delete it, or give another --work."
        )


def save_checkpoint(
    path: Path,
    model: PreTrainedModel,
    optimizers: list[torch.optim.Optimizer],
    progress: Progress,
    wanted: dict[str, object],
) -> None:
    """Write a checkpoint so that an interrupted write never destroys the last one."""
    state = {
        "model": model.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "progress": vars(progress),
        "recipe": wanted,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


def load_checkpoint(
    path: Path, model: PreTrainedModel, optimizers: list[torch.optim.Optimizer], wanted: dict[str, object]
) -> Progress:
    """Load the last checkpoint, or start afresh where there is none; that of another run is refused."""
    if not path.exists():
        return Progress()
    state = torch.load(path, weights_only=True)
    check_recipe(path, state.get("recipe", {}), wanted)
    model.load_state_dict(state["model"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    return Progress(**state["progress"])


def export(out: Path, model: PreTrainedModel) -> None:
    """Write the model and its tokenizer as the Auto classes load them."""
    build_tokenizer().save_pretrained(out)
    model.save_pretrained(out)


class Log:
    """Lines on the screen and in a file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path

    def __call__(self, **entries: object) -> None:
        line = json.dumps(entries)
        print(line, flush=True)
        with self.path.open("a") as file:
            file.write(line + "\n")


def train(args: argparse.Namespace) -> None:
    """Train until the last step, saving and evaluating on the way."""
    threads = args.threads
    torch.set_num_threads(threads)
    torch.manual_seed(args.seed)
    model = build_model(args.hidden, args.layers, args.intermediate, args.tie, args.rope_pattern, args.seeding)
    matrices, others = split_parameters(model)
    optimizers: list[torch.optim.Optimizer] = [
        Muon(matrices, lr=args.muon_rate),
        torch.optim.AdamW(others, lr=args.adam_rate, betas=(0.9, 0.98), weight_decay=0.01),
    ]
    rates = (args.muon_rate, args.adam_rate)
    log, path = Log(args.work.parent / "train.log"), args.work / "last.pt"
    progress = load_checkpoint(path, model, optimizers, recipe(args))
    log(parameters=model.num_parameters(), resumed=progress.step)
    model.train()
    saved, window = time.monotonic(), [0.0, 0]
    while progress.step < args.steps:
        started = time.monotonic()
        rng = random.Random(f"train-{args.seed}-{progress.step}")
        length = choose_length(rng, progress.level)
        batch = sample_batch(rng, length, max(args.tokens, 2 * length), warm=progress.level == 0)
        loss, accuracy = batch_loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer, rate in zip(optimizers, rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate * rate_factor(progress.step, args)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        window = [window[0] + loss.item(), window[1] + 1]
        at_top = length == LENGTHS[progress.level]
        if at_top and accuracy is not None and promote(progress, accuracy, args):
            log(step=progress.step, unlocked=LENGTHS[progress.level])
        progress.step += 1
        progress.seconds += time.monotonic() - started
        if progress.step % 10 == 0:
            threads = share_machine(threads, args.threads)
            torch.set_num_threads(threads)
        if progress.step % 50 == 0:
            log(step=progress.step, length=LENGTHS[progress.level],
                loss=round(window[0] / window[1], 4), found=round(progress.accuracy, 3),
                minutes=round(progress.seconds / 60, 2))  # fmt: skip
            window = [0.0, 0]
        if progress.step % args.eval_steps == 0:
            top = LENGTHS[progress.level]
            for tokens in sorted({min(top, n) for n in (128, 512, 1024, top)}):
                log(step=progress.step, tokens=tokens, **teacher_forced_scores(model, tokens))
        if time.monotonic() - saved > args.save_seconds:
            save_checkpoint(path, model, optimizers, progress, recipe(args))
            saved = time.monotonic()
            export(args.out, model)
    save_checkpoint(path, model, optimizers, progress, recipe(args))
    export(args.out, model)


if __name__ == "__main__":
    train(parse_arguments())
