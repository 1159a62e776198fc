"""Models as a command line asks for them: first shapes, to which methods are held, then weights."""

from __future__ import annotations

import os
from collections.abc import Iterable

from transformers import PreTrainedModel

from winnow.commands.large_weights import warn_of_large_weights
from winnow.commands.options.shared import ModelOptions
from winnow.commands.progress import stage
from winnow.composition.method import Method
from winnow.evaluate.checking import check_shapes
from winnow.models import ModelSource, ModelSpec, load_model, open_skeleton


def load(
    source: ModelSource, options: ModelOptions, skeleton: PreTrainedModel | None = None, can_choose: bool = True
) -> PreTrainedModel:
    """The model with its weights; skeleton, can_choose: as of `warn_of_large_weights`, which is asked first.

    Raises ModelError as `load_model`.
    """
    warn_of_large_weights(source, options, skeleton, can_choose)
    with stage("Loading the model"):
        return load_model(source, options.device, options.dtype, options.device_map, options.weights)


def spec_of(source: ModelSource, options: ModelOptions) -> ModelSpec:
    """The same model, for workers that load their own, maybe in another folder."""
    path = os.path.expanduser(source.name)
    name = os.path.abspath(path) if os.path.exists(path) else source.name
    return ModelSpec(name, options.device, options.dtype, options.weights)


def check_methods(
    source: ModelSource,
    options: ModelOptions,
    methods: Iterable[Method],
    lengths: Iterable[int] = (),
    fold_every: int | None = None,
) -> PreTrainedModel:
    """Holds methods to the shapes of the model, before its weights are loaded; returns the skeleton that has them.

    Raises as `check_shapes`.
    """
    with stage("Checking the methods"):
        skeleton = open_skeleton(source, options.device, options.dtype, options.weights)
        check_shapes(skeleton, methods, lengths, fold_every)
    return skeleton
