"""Weights of GGUF files, read row by row: as transformers unpacks them, or in the bits of the file."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from support.families import build
from support.gguf_files import tiny_model, write_gguf, write_weights
from support.sources import source_in
from support.turns import each_value
from winnow.errors import ModelError
from winnow.models import gguf_loading as loading
from winnow.models import load_model, open_model, quantize_weights, weights_of
from winnow.models.gguf_loading import read_row_by_row
from winnow.models.gguf_rounding import LevelsKept
from winnow.models.gguf_rows import FileRows
from winnow.models.gguf_tracing import parameters_in
from winnow.models.high_bits import HighBitsLinear
from winnow.models.int4 import Int4Linear
from winnow.models.int5 import Int5Linear
from winnow.models.int8 import Int8Embedding, Int8Linear
from winnow.models.quantized_stack import QuantizedStack
from winnow.models.rounding import Rounding

gguf = pytest.importorskip("gguf")
pytest.importorskip("accelerate")
pytestmark = pytest.mark.usefixtures("one_thread")

ARCHITECTURES = {
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "llama": "llama",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "starcoder2": "starcoder2",
    "phi3": "phi3",
}
KEPT = HighBitsLinear.serves((64, 64), torch.bfloat16)
"""True where weights of 5 and 6 bits stay at their levels."""
MIXED = ("Q4_0", "Q4_1", "Q5_0", "Q8_0", "F16", "BF16", "F32")


def mixed(name: str) -> str:
    """A kind for every matrix of a file, other ones in other layers; experts' first two have the same."""
    return MIXED[sum(name.replace("up", "gate").encode()) % len(MIXED)]


def unpacked(path: Path, model: PreTrainedModel, dtype: torch.dtype) -> dict[str, Tensor]:
    """Parameters by transformers' own code, which reads the whole file."""
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    found = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model, torch_dtype=dtype)["tensors"]
    return {name: each.to(dtype) for name, each in found.items()}


@pytest.mark.parametrize(("family", "dtype"), each_value(list(ARCHITECTURES), [torch.float32, torch.bfloat16]))
def test_parameters_are_those_that_transformers_unpacks(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = build(family)
    path = write_weights(tmp_path / "m.gguf", model, ARCHITECTURES[family], mixed)
    expected, found = unpacked(path, model, dtype), parameters_in(str(path), model, dtype)
    assert found is not None
    assert found.keys() == expected.keys()
    assert len(found) > 10
    for name, one in found.items():
        assert torch.equal(one[...], expected[name]), name
        assert isinstance(one, FileRows) or min(len(one.shape), len(one)) == 1, name


def test_weights_that_are_transposed_are_left_to_transformers(tmp_path: Path) -> None:
    model = build("gpt2")
    model.config.num_key_value_heads = model.config.num_attention_heads
    path = write_weights(tmp_path / "m.gguf", model, "gpt2", lambda name: "F32")
    assert parameters_in(str(path), model, torch.float32) is None


@pytest.mark.parametrize("done", [lambda w: w + 1, lambda w: w - 977, lambda w: w * 2, lambda w: -w, lambda w: w / 3])
def test_weights_that_something_is_done_to_are_left_to_transformers(
    done: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    from transformers import modeling_gguf_pytorch_utils as unpacking

    class Other(unpacking.TensorProcessor):  # type: ignore[misc]
        def process(self, weights: np.ndarray, name: str, **facts: Any) -> Any:
            return unpacking.GGUFTensor(done(weights) if weights.ndim > 1 else weights, name, {})

    model = build("qwen2")
    path = write_weights(tmp_path / "m.gguf", model, "qwen2", mixed)
    assert parameters_in(str(path), model, torch.float32) is not None
    monkeypatch.setitem(unpacking.TENSOR_PROCESSORS, "qwen2", Other)
    assert parameters_in(str(path), model, torch.float32) is None


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Matrices of 4 and of 8 bits, and output layer and embedding of 4."""
    kinds = {"attn_q": "Q4_0", "attn_k": "Q4_1", "ffn_gate": "Q4_1", "ffn_up": "Q4_0", "attn_output": "Q5_0"}
    few = {"token_embd": "Q4_0", "output": "Q4_1", **kinds}

    def kind(name: str) -> str:
        return next((found for part, found in few.items() if f".{part}." in f".{name}"), "Q8_0")

    folder = tmp_path_factory.mktemp("file")
    return write_gguf(folder / "m.gguf", tiny_model(), kind)


def test_a_model_is_the_one_that_transformers_loads(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_model(file)
    found = load_model(source, "cpu", "bfloat16").state_dict()
    monkeypatch.setattr(loading, "parameters_in", lambda *_: None)
    expected = load_model(source, "cpu", "bfloat16").state_dict()
    assert found.keys() == expected.keys()
    for name, one in found.items():
        assert torch.equal(one, expected[name]), name


@pytest.mark.parametrize("weights", ["auto", "int8", "int4", "gguf"])
def test_the_file_is_not_unpacked_as_a_whole(weights: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No matrix is there in 16 bits when the next one is read, but for those that stay so."""
    read: list[tuple[str, weakref.ref[Tensor]]] = []
    held: list[int] = []
    plain = FileRows.__getitem__

    def watched(self: FileRows, index: object) -> Tensor:
        held.append(sum(each() is not None for kind, each in read if kind != str([259, 64])))
        found = plain(self, index)
        read.append((str(list(found.shape)), weakref.ref(found)))
        return found

    monkeypatch.setattr(FileRows, "__getitem__", watched)
    load_model(open_model(file), "cpu", weights=weights)
    assert read
    if weights != "auto":
        assert max(held) <= 1


def at_levels(rows: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Levels, steps and least values of blocks of 32, as the format has them, in float64."""
    size = {"Q4_0": 18, "Q4_1": 20}[kind]
    blocks = rows.reshape(-1, size)
    steps = blocks[:, :2].copy().view(np.float16).astype(np.float64)
    least = blocks[:, 2:4].copy().view(np.float16).astype(np.float64) if kind == "Q4_1" else steps * -8
    packed = blocks[:, size - 16 :]
    levels = np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float64)
    return levels, steps, least


def rounded(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    return torch.from_numpy(values).to(dtype).double().numpy()


@pytest.mark.parametrize("weights", ["int4", "gguf"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_weights_of_sixteen_levels_stay_at_them(file: Path, weights: str, dtype: str) -> None:
    """Steps, and the values in the middle, are as near as the model's dtype is to those of the file."""
    model: Any = load_model(open_model(file), "cpu", dtype, weights=weights)
    tensors = {each.name: each for each in gguf.GGUFReader(file).tensors}
    layer = model.model.layers[1]
    checked = {"attn_q": layer.self_attn.q_proj, "attn_k": layer.self_attn.k_proj}
    for name, linear in checked.items():
        tensor = tensors[f"blk.1.{name}.weight"]
        if not Int4Linear.fits((linear.out_features, linear.in_features)):
            continue
        assert type(linear) is Int4Linear
        levels, steps, least = at_levels(tensor.data, tensor.tensor_type.name)
        kind = getattr(torch, dtype)
        expected = (levels - 8) * rounded(steps, kind) + rounded(least + 8 * steps, kind)
        found = linear.written_out(slice(None), torch.float32).double().numpy().reshape(expected.shape)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
        exact = levels * steps + least
        assert np.abs(found - exact).max() <= np.abs(exact).max() * (2e-2 if dtype == "bfloat16" else 1e-6)


def test_the_nearest_levels_would_be_others(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that are rounded to 4 bits again are far from those of the file, compared with those that are not."""
    source = open_model(file)
    exact: Any = load_model(source, "cpu", "float32")
    kept: Any = load_model(source, "cpu", weights="int4")
    monkeypatch.setattr(loading, "parameters_in", lambda *_: None)
    again: Any = load_model(source, "cpu", weights="int4")
    name = "model.layers.0.self_attn.q_proj"
    expected = exact.get_submodule(name).weight
    near, far = ((each.get_submodule(name).weight.float() - expected).norm() for each in (kept, again))
    assert near < 0.2 * far


def test_each_layer_has_about_the_bits_of_the_file(file: Path) -> None:
    model: Any = load_model(open_model(file), "cpu", weights="gguf")
    eight: Any = load_model(open_model(file), "cpu", weights="int8")
    four: Any = load_model(open_model(file), "cpu", weights="int4")
    assert (weights_of(model), weights_of(eight), weights_of(four)) == ("gguf", "int8", "int4")
    layer = model.model.layers[0]
    kinds = {name: type(each) for name, each in layer.named_modules() if hasattr(each, "stored_names")}
    assert kinds == {
        "self_attn.q_proj": Int4Linear,
        "self_attn.k_proj": Int8Linear,  # 32 outputs, which 4 bits do not fit
        "self_attn.v_proj": Int8Linear,
        "self_attn.o_proj": Int5Linear if KEPT else Int8Linear,
        "mlp.gate_proj": Int8Linear,  # 96 outputs
        "mlp.up_proj": Int8Linear,
        "mlp.down_proj": Int8Linear,
    }
    assert type(model.lm_head) is Int8Linear
    assert type(model.model.embed_tokens) is Int8Embedding
    for name in ("self_attn.v_proj", "mlp.down_proj"):
        ours, theirs = layer.get_submodule(name), eight.model.layers[0].get_submodule(name)
        assert torch.equal(ours.levels, theirs.levels)
    assert torch.equal(layer.self_attn.q_proj.packed, four.model.layers[0].self_attn.q_proj.packed)


@pytest.mark.parametrize("weights", ["int8", "int4", "gguf"])
def test_weights_of_5_bits_stay_where_kernels_read_them_and_no_fewer_are_wanted(weights: str, tmp_path: Path) -> None:
    source = open_model(write_gguf(tmp_path / "m.gguf", tiny_model(), lambda name: "Q5_0"))
    model: Any = load_model(source, "cpu", weights=weights)
    exact: Any = load_model(source, "cpu", "float32")
    name = "model.layers.0.self_attn.q_proj"
    kept = weights == "gguf" and KEPT
    assert isinstance(model.get_submodule(name), Int5Linear) == kept
    assert weights_of(model) == ("gguf" if kept else "int4" if weights == "int4" else "int8")
    found, expected = model.get_submodule(name).weight.double(), exact.get_submodule(name).weight.double()
    # Scales are rounded, and then the weight: half a step of bfloat16 each.
    assert bool(((found - expected).abs() <= 2.01 * 2**-8 * expected.abs()).all()) == kept


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
def test_files_of_one_kind_give_weights_of_one_kind(kind: str, tmp_path: Path) -> None:
    source = open_model(write_gguf(tmp_path / "m.gguf", tiny_model(), lambda name: kind))
    found = load_model(source, "cpu", weights="gguf")
    other = load_model(source, "cpu", weights="int4" if kind == "Q4_0" else "int8")
    if kind == "Q8_0":
        assert weights_of(found) == "int8"
        assert all(torch.equal(one, two) for one, two in zip(found.parameters(), other.parameters(), strict=True))
    else:
        assert weights_of(found) == weights_of(other) == "int4"


def test_output_layer_and_embedding_are_left_to_be_rounded_to_8_bits(tmp_path: Path) -> None:
    model = build("qwen2", vocab_size=128, tie_word_embeddings=False)
    path = write_weights(tmp_path / "m.gguf", model, "qwen2", lambda name: "Q4_0")
    found = parameters_in(str(path), model, torch.float32)
    assert found is not None
    kept = LevelsKept(Rounding(4))(model, found)
    same = {name for name, each in kept.items() if each is found[name]}
    assert {"lm_head.weight", "model.embed_tokens.weight"} <= same
    assert "model.layers.0.self_attn.q_proj.weight" not in same


@pytest.mark.parametrize("gate", ["Q4_0", "Q8_0"])
def test_experts_stay_at_levels_if_all_of_them_are(gate: str, tmp_path: Path) -> None:
    def kind(name: str) -> str:
        return gate if "gate_exps" in name else "Q4_0" if "exps" in name else "F32"

    model = build("qwen3_moe", moe_intermediate_size=64, hidden_size=64)
    path = write_weights(tmp_path / "m.gguf", model, "qwen3moe", kind)
    found = parameters_in(str(path), model, torch.float32)
    assert found is not None
    kept = LevelsKept(Rounding(4))(model, found)
    enter = kept["model.layers.0.mlp.experts.gate_up_proj"][...]
    leave = kept["model.layers.0.mlp.experts.down_proj"][...]
    assert isinstance(leave.rounded, QuantizedStack)
    values = {"down_proj": leave}
    if gate == "Q4_0":
        values["gate_up_proj"] = enter
    else:
        assert isinstance(enter, Tensor)
        assert type(enter) is Tensor
    for name, made in values.items():
        expected = found[f"model.layers.0.mlp.experts.{name}"][...]
        for expert, layer in enumerate(made.rounded):
            torch.testing.assert_close(layer.weight, expected[expert], rtol=1e-5, atol=1e-6)


def test_gguf_weights_are_for_gguf_files_of_few_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build("qwen2").save_pretrained(tmp_path / "plain")
    with pytest.raises(ModelError, match=r"--weights gguf is for GGUF files, and .* is none; use int8 or int4"):
        load_model(source_in(tmp_path / "plain"), "cpu", weights="gguf")
    plain = open_model(write_gguf(tmp_path / "f16.gguf", tiny_model(), lambda name: "F16"))
    with pytest.raises(ModelError, match="are not in few bits: leave --weights gguf out"):
        load_model(plain, "cpu", weights="gguf")
    few = open_model(write_gguf(tmp_path / "q4.gguf", tiny_model(), lambda name: "Q4_0"))
    monkeypatch.setattr(loading, "parameters_in", lambda *_: None)
    with pytest.raises(ModelError, match="which transformers reads in a way of its own: use --weights int8 or int4"):
        load_model(few, "cpu", weights="gguf")


def test_a_transformers_that_changes_weights_of_few_bits_is_refused(file: Path, monkeypatch: Any) -> None:
    """Else the model would have no weights at all."""
    from winnow.models.gguf_rounding import _Kept

    plain = _Kept.__getitem__
    monkeypatch.setattr(_Kept, "__getitem__", lambda self, index: plain(self, index) + 0)
    with pytest.raises(ModelError, match=r"changes .*proj.weight while it loads it: leave --weights out"):
        load_model(open_model(file), "cpu", weights="gguf")


def test_nothing_stays_changed_outside(file: Path) -> None:
    from transformers import modeling_gguf_pytorch_utils as unpacking

    plain = (gguf.get_tensor_name_map, gguf.GGUFReader, unpacking.load_gguf_checkpoint)
    load_model(open_model(file), "cpu", weights="gguf")
    with pytest.raises(RuntimeError, match="on purpose"), read_row_by_row():
        assert unpacking.load_gguf_checkpoint is not plain[2]
        raise RuntimeError("on purpose")
    assert plain == (gguf.get_tensor_name_map, gguf.GGUFReader, unpacking.load_gguf_checkpoint)


def test_a_complete_model_gets_8_bits(file: Path) -> None:
    model = load_model(open_model(file), "cpu", "bfloat16")
    quantize_weights(model, "gguf")
    assert weights_of(model) == "int8"


@pytest.fixture
def folder(file: Path) -> Path:
    (file.parent / "text.txt").write_text("the thin man who lives there is here " * 4, encoding="utf-8")
    return file.parent


def test_a_context_is_asked_with_the_same_weights(file: Path, winnow_run: Any) -> None:
    made = ("compress", "text.txt", "--model", str(file), "-o", "c", "--weights", "gguf", "--budget", "20%")
    code, _, err = winnow_run(*made)
    assert code == 0, err
    code, out, err = winnow_run("ask", "c", "who?", "--max-new-tokens", "3")
    assert code == 0, err
    assert "bfloat16 with gguf weights on cpu" in out
