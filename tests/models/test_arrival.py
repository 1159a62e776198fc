"""Weights rounded as they are read: the same as those of a model that is rounded when it is complete."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from support.families import build, build_any, vision_models
from support.sources import source_in
from support.turns import each_value
from winnow.errors import ModelError
from winnow.models import load_model, quantize_weights
from winnow.models.arrival import rounded_on_arrival
from winnow.models.gated import GatedMLP
from winnow.models.int8 import Int8Embedding, Int8Linear
from winnow.models.mlps import PiecewiseMLP
from winnow.models.rounding import RoundedWeights, Rounding
from winnow.models.source import ModelSource

pytestmark = pytest.mark.usefixtures("one_thread")
VARIABLE = "HF_DEACTIVATE_ASYNC_LOAD"


def stored(model: PreTrainedModel, folder: Path) -> ModelSource:
    """The model in files."""
    model.save_pretrained(folder)
    return source_in(folder)


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    return dict(model.named_parameters())


def kinds_of(model: nn.Module) -> dict[str, type[nn.Module]]:
    """Types of a model's modules. Gated MLPs without kernels for their weights (4 bits in fp32) run in pieces."""
    kinds = {name: type(each) for name, each in model.named_modules()}
    return {name: PiecewiseMLP if kind is GatedMLP else kind for name, kind in kinds.items()}


@pytest.mark.parametrize(
    ("family", "weights", "dtype"),
    each_value(
        [
            *("llama", "qwen2", "qwen3_moe", "mixtral", "gpt_oss", "deepseek_v2", "granitemoe", "gemma3_text"),
            *vision_models(),
        ],
        ["int8", "int4"],
        ["float32", "bfloat16"],
    ),
)
def test_a_model_is_the_same_whenever_it_is_rounded(family: str, weights: str, dtype: str, tmp_path: Path) -> None:
    source = stored(build_any(family), tmp_path)
    expected = load_model(source, "cpu", dtype)
    quantize_weights(expected, weights)
    found = load_model(source, "cpu", dtype, weights=weights)
    ours, theirs = parameters_of(found), parameters_of(expected)
    assert list(ours) == list(theirs)
    for name, one in ours.items():
        assert torch.equal(one, theirs[name]), name
        assert one.dtype == theirs[name].dtype
    assert kinds_of(found) == kinds_of(expected)
    assert not any(isinstance(each, RoundedWeights) for each in ours.values())


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_weights_are_freed_before_the_next_ones_are_read(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = stored(build(family), tmp_path)
    read: list[weakref.ref[nn.Parameter]] = []
    held: list[int] = []
    instead = RoundedWeights.instead_of.__func__  # type: ignore[attr-defined]

    def watched(cls: type[RoundedWeights], parameter: nn.Parameter, rounded: Any) -> RoundedWeights:
        held.append(sum(each() is not None for each in read))
        read.append(weakref.ref(parameter))
        made: RoundedWeights = instead(cls, parameter, rounded)
        assert made.untyped_storage().nbytes() < 16
        return made

    monkeypatch.setattr(RoundedWeights, "instead_of", classmethod(watched))
    load_model(source, "cpu", weights="int8")
    assert len(read) > 12
    assert max(held) <= 1


@pytest.mark.parametrize("tied", [True, False])
def test_the_output_layer_keeps_8_bits_and_its_embedding(tied: bool, tmp_path: Path) -> None:
    source = stored(build("llama", tie_word_embeddings=tied, vocab_size=128), tmp_path)
    model: Any = load_model(source, "cpu", weights="int4")
    assert type(model.lm_head) is Int8Linear
    embedding = model.model.embed_tokens
    assert type(embedding) is Int8Embedding
    assert (embedding.levels is model.lm_head.levels) == tied


@pytest.mark.parametrize("before", [None, "0"])
def test_nothing_stays_changed_outside(before: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if before is None:
        monkeypatch.delenv(VARIABLE, raising=False)
    else:
        monkeypatch.setenv(VARIABLE, before)
    source = stored(build("llama"), tmp_path)
    load_model(source, "cpu", weights="int8")
    assert os.environ.get(VARIABLE) == before
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ModelError, match="weights"):
        load_model(source, "cpu", weights="int8")
    assert os.environ.get(VARIABLE) == before
    assert type(nn.Linear(8, 8).weight) is nn.Parameter


def test_missing_weights_are_told_as_ever(tmp_path: Path) -> None:
    model = build("llama")
    model.save_pretrained(tmp_path, state_dict={k: v for k, v in model.state_dict().items() if "q_proj" not in k})
    with pytest.raises(ModelError, match=r"no weights for .*q_proj"):
        load_model(source_in(tmp_path), "cpu", weights="int8")


def arrive(layer: nn.Linear) -> None:
    """As transformers puts a weight that it read into a module."""
    weight: Any = nn.Parameter(layer.weight.detach())
    weight._is_hf_initialized = True
    layer.weight = weight


def test_models_of_other_threads_are_left_alone() -> None:
    here, there = nn.Linear(64, 64), nn.Linear(64, 64)
    with rounded_on_arrival(Rounding(8)):
        arrive(here)
        thread = Thread(target=arrive, args=(there,))
        thread.start()
        thread.join()
    assert type(here.weight) is RoundedWeights
    assert type(there.weight) is nn.Parameter
