"""Executors by name, for commands whose work can be done by several."""

from __future__ import annotations

from typing import Literal, TypeVar

from winnow.commands.console import messages
from winnow.estimate.executors.base import Executor, Recipe
from winnow.estimate.executors.processes import ProcessExecutor
from winnow.estimate.executors.ray_cluster import RayExecutor
from winnow.models import pick_device

V = TypeVar("V")


def crew(kind: Literal["processes", "ray"], recipe: Recipe[V], workers: int, device: str) -> Executor[V]:
    """Workers that each load the model. Raises ExecutorError where there can be none."""
    if kind == "processes":
        return ProcessExecutor(recipe, workers)

    def tell(text: str) -> None:
        messages().print(text, markup=False, soft_wrap=True)

    return RayExecutor(recipe, workers, gpus=1 if pick_device(device).type == "cuda" else 0, tell=tell)
