"""A warning where a model's weights take more memory than is free: the system may end a process without a word."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from winnow.commands.console import messages
from winnow.commands.formats import written_bytes
from winnow.commands.model_names import model_name
from winnow.commands.options.shared import ModelOptions
from winnow.commands.progress import stage
from winnow.errors import ModelError
from winnow.models import WEIGHTS, ModelSource, available_memory, open_skeleton, pick_device
from winnow.models.dtypes import written_dtype
from winnow.models.needed import weight_bytes
from winnow.models.weights import scheme_of, written_out


class _Form(NamedTuple):
    """A form that weights could have."""

    option: str
    """Words of the command line that ask for it."""
    size: int
    """Bytes of all weights."""


def warn_of_large_weights(
    source: ModelSource, options: ModelOptions, skeleton: PreTrainedModel | None = None, can_choose: bool = True
) -> bool:
    """Says on standard error that weights take more memory than their device has free; True if it had to.

    skeleton: that of `open_skeleton` for these options, made here if it is not given; can_choose: the command has
    options for other weights, one of which is then named. Nothing is said where nobody knows what weights will take:
    spread over devices, or in the bits of a library. What is wrong with the model is left to those who load it.
    """
    told = None
    if options.device_map is None:
        with stage("Checking the memory"), suppress(ModelError):
            told = _told(source, options, skeleton, can_choose)
    if told is not None:
        messages().print(f"Warning: {told}", style="yellow", soft_wrap=True, markup=False)
    return told is not None


def _told(source: ModelSource, options: ModelOptions, skeleton: PreTrainedModel | None, can_choose: bool) -> str | None:
    """None where weights fit, or nobody knows. Raises ModelError as `open_skeleton`."""
    where = pick_device(options.device)
    free = available_memory(where)
    if free is None or not _are_known(source, options, where):
        return None
    if skeleton is None:
        skeleton = open_skeleton(source, options.device, options.dtype, options.weights)
    needed = weight_bytes(skeleton, options.weights)
    if needed is None or needed <= free:
        return None
    form = f"in {written_dtype(skeleton.dtype)}" if options.weights == "auto" else f"as {options.weights}"
    memory, end = "memory", "end in swapping, or be stopped by the system"
    if where.type == "cuda":
        memory, end = "the GPU's memory", "fail"
    advice = f" {_advice(source, options, skeleton, free)}" if can_choose else ""
    return (
        f"the weights of {model_name(source)} take {written_bytes(needed)} {form}, and {written_bytes(free)} of "
        f"{memory} are free: loading may {end}.{advice}"
    )


def _are_known(source: ModelSource, options: ModelOptions, where: torch.device) -> bool:
    """False for a checkpoint in few bits, unless they are written out: as they are read, on a CPU."""
    if options.weights != "auto" or scheme_of(source.config) is None:
        return True
    return where.type == "cpu" and written_out(source.config) is not None


def _advice(source: ModelSource, options: ModelOptions, skeleton: PreTrainedModel, free: int) -> str:
    fitting = [form for form in _others(source, options, skeleton) if form.size <= free]
    if not fitting:
        return "Use a smaller model."
    best = max(fitting, key=lambda form: form.size)
    return f"With {best.option} they take {written_bytes(best.size)}."


def _others(source: ModelSource, options: ModelOptions, skeleton: PreTrainedModel) -> Iterator[_Form]:
    """Forms that another option gives the weights on their device."""
    options_of_forms = [(f"--weights {each}", options.dtype, each) for each in WEIGHTS if each != "auto"]
    if skeleton.dtype == torch.float32:
        options_of_forms.append(("--dtype bfloat16", "bfloat16", options.weights))
    for option, dtype, weights in options_of_forms:
        with suppress(ModelError):  # for weights that are not for this model, or this device
            size = weight_bytes(open_skeleton(source, options.device, dtype, weights), weights)
            if size is not None:
                yield _Form(option, size)
