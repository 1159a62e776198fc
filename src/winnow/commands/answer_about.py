"""Facts about the place where a command's answers came from: type of the weights, machine and versions."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from winnow.commands.model_names import dtype_name
from winnow.models import weights_of
from winnow.runs.environment import environment


def place_of(model: PreTrainedModel) -> dict[str, Any]:
    """Facts without which times are no evidence, by name, as JSON values; of quantized weights their scheme."""
    return {"dtype": dtype_name(model), "weights": weights_of(model), "environment": environment(model.device)}


def in_columns(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry for a table: the environment as columns of its own, named as those of `winnow export` are."""
    apart = {f"environment_{name}": value for name, value in entry.get("environment", {}).items()}
    return {name: value for name, value in entry.items() if name != "environment"} | apart
