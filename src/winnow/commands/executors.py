"""Workers that a command line asks for, on their devices, and the part of the work that they do."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from winnow.commands.console import messages
from winnow.commands.options.executors import ExecutorOptions, Shard
from winnow.commands.progress import journal_path
from winnow.estimate.cokv.recipe import CoalitionRecipe
from winnow.estimate.executors.base import Executor
from winnow.estimate.executors.devices import devices_of
from winnow.estimate.executors.processes import ProcessExecutor
from winnow.estimate.executors.ray_cluster import RayExecutor
from winnow.estimate.needle.recipe import NeedleRecipe
from winnow.models import pick_device
from winnow.runs.worker import RunRecipe

AnyRecipe = TypeVar("AnyRecipe", CoalitionRecipe, NeedleRecipe, RunRecipe)


class _Journaled(Protocol):
    @property
    def out(self) -> Path: ...

    @property
    def journal(self) -> Path | None: ...


def crew(options: ExecutorOptions, recipe: AnyRecipe) -> Executor[Any]:
    """Several workers, each of which loads the model: processes of this machine, or actors of a Ray cluster."""
    if options.executor == "processes":
        devices = devices_of(recipe.model.device, options.crew_size, gpus_for(recipe.model.device))
        recipes = [replace(recipe, model=replace(recipe.model, device=device)) for device in devices]
        return ProcessExecutor(recipes, options.crew_size)
    return RayExecutor(recipe, options.crew_size, gpus=1 if gpus_for(recipe.model.device) else 0, tell=_tell)


def gpus_for(device: str) -> int:
    """GPUs of this machine that a model on this device may run on; 0 where it runs on none."""
    return torch.cuda.device_count() if pick_device(device).type == "cuda" else 0


def workers_of_a_device(options: ExecutorOptions, device: str) -> int:
    """Workers that divide a device of this machine among them, at most; in a cluster every GPU has one."""
    gpus = gpus_for(device)
    if options.executor == "local" or (options.executor == "ray" and gpus):
        return 1
    return max(Counter(devices_of(device, options.crew_size, gpus)).values())


def journal_file(options: _Journaled, shard: Shard | None) -> Path:
    """The journal that was asked for, or one beside the output; every shard has its own."""
    part = "" if shard is None else f".shard-{shard[0] + 1}-of-{shard[1]}"
    return options.journal or journal_path(options.out, part)


def _tell(text: str) -> None:
    messages().print(text, markup=False, soft_wrap=True)
