"""Where items of work are evaluated: in this process, in processes of this machine, on a Ray cluster."""

from winnow.heads.executors.base import Done, Executor, ExecutorError, Item, Recipe, Worker
from winnow.heads.executors.local import LocalExecutor
from winnow.heads.executors.processes import ProcessExecutor
from winnow.heads.executors.ray_cluster import RayExecutor

__all__ = [
    "Done",
    "Executor",
    "ExecutorError",
    "Item",
    "LocalExecutor",
    "ProcessExecutor",
    "RayExecutor",
    "Recipe",
    "Worker",
]
