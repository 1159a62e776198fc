"""Where items of work are evaluated: in this process, in processes of this machine, on a Ray cluster."""

from winnow.estimate.executors.base import Done, Executor, Item, Recipe, Worker
from winnow.estimate.executors.local import LocalExecutor
from winnow.estimate.executors.processes import ProcessExecutor
from winnow.estimate.executors.ray_cluster import RayExecutor

__all__ = [
    "Done",
    "Executor",
    "Item",
    "LocalExecutor",
    "ProcessExecutor",
    "RayExecutor",
    "Recipe",
    "Worker",
]
