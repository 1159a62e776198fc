"""Bytes that weights will take against those of models that were loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from torch import Tensor
from transformers import PreTrainedModel

from support.families import STARTING_ANEW, build, build_any
from support.gguf_files import tiny_model, write_gguf
from support.quantized_checkpoints import write_fp8, write_mxfp4
from support.sources import source_in
from winnow.models import ModelSource, load_model, open_model, open_skeleton
from winnow.models.needed import weight_bytes

pytestmark = pytest.mark.usefixtures("one_thread")
FORMS = [("float32", "auto"), ("bfloat16", "auto"), ("float32", "int8"), ("bfloat16", "int8"), ("bfloat16", "int4")]
"""Dtypes and weights."""
FAMILIES = (
    *("llama", "llava", "phi", "minicpm3", "gemma3_text", "gemma3n_text", "gpt2", "zamba", "qwen3_next", "falcon_h1"),
    *("mixtral", "qwen3_moe", "granitemoe", "gpt_oss", "llama4_text", "deepseek_v3"),
)
"""Among them are weights that are no linear layer's, layers that are there twice, parameters that stay in float32, and
experts in every form."""


def taken(model: PreTrainedModel) -> int:
    """Bytes of a model's parameters, those that are the same memory once."""
    return sum({each.data_ptr(): each.nbytes for each in model.parameters()}.values())


def check_forms(source: ModelSource, forms: list[tuple[str, str]] = FORMS) -> None:
    for dtype, weights in forms:
        skeleton = open_skeleton(source, "cpu", dtype, weights)
        loaded = load_model(source, "cpu", dtype, weights=weights)
        assert weight_bytes(skeleton, weights) == taken(loaded), (dtype, weights)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_form_of_a_family(family: str, tmp_path: Path) -> None:
    model = build(family, **STARTING_ANEW[family]) if family in STARTING_ANEW else build_any(family)
    model.save_pretrained(tmp_path)
    check_forms(source_in(tmp_path))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["llama", "gemma"])
def test_a_weight_that_embedding_and_output_layer_share_counts_once(family: str, tied: bool, tmp_path: Path) -> None:
    # Of so many tokens that the output layer would fit 4 bits, and has 8 all the same.
    build(family, tie_word_embeddings=tied, vocab_size=128).save_pretrained(tmp_path)
    check_forms(source_in(tmp_path))


@pytest.mark.parametrize("write", [write_mxfp4, write_fp8])
def test_checkpoints_that_are_written_out(write: Callable[[Path], dict[str, Tensor]], tmp_path: Path) -> None:
    write(tmp_path)
    check_forms(source_in(tmp_path), [("bfloat16", "auto"), ("bfloat16", "int8"), ("bfloat16", "int4")])


def test_files_of_blocks(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    check_forms(open_model(write_gguf(tmp_path / "tiny.gguf", tiny_model())))


def test_nothing_is_said_of_weights_that_are_not_known(source: ModelSource) -> None:
    assert weight_bytes(open_skeleton(source, "cpu"), "int2") is None
