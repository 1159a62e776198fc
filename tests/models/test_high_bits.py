"""Weights of 5 and 6 bits: the order of their levels, and linear layers that keep those of a file."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.linear_layers import levels_of
from support.many_rows import lost_by_rounding
from winnow.kernels import native
from winnow.kernels.linear import Weight, multiplies_many
from winnow.models.gguf_blocks import levels_of as levels_in
from winnow.models.gguf_rows import FileRows, FileTensor
from winnow.models.high_bits import HighBitsLinear
from winnow.models.int5 import Int5Linear
from winnow.models.int6 import Int6Linear
from winnow.models.level_planes import LevelPlanes
from winnow.models.quantized import QuantizedLinear
from winnow.models.quantized_stack import QuantizedStack
from winnow.models.rounding import Rounding

gguf = pytest.importorskip("gguf")
pytestmark = pytest.mark.usefixtures("one_thread")

KINDS = {"Q5_0": Int5Linear, "Q5_1": Int5Linear, "Q5_K": Int5Linear, "Q6_K": Int6Linear}
SERVED = HighBitsLinear.serves((64, 32), torch.bfloat16)
OUTPUTS, INPUTS = 192, 512
EPS = 2.0**-8
"""Half a step of bfloat16."""


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([5, 6]), st.integers(1, 3), st.integers(1, 5), st.integers(0, 1 << 20))
def test_levels_lie_where_the_kernels_read_them(bits: int, blocks: int, groups: int, seed: int) -> None:
    chance = torch.Generator().manual_seed(seed)
    outputs, inputs = 64 * blocks, 32 * groups
    levels = torch.randint(1 << bits, (outputs, inputs), generator=chance, dtype=torch.uint8)
    packed, planes = torch.empty(outputs, inputs * bits // 8, dtype=torch.uint8), LevelPlanes(bits)
    planes.pack(levels.clone(), packed)
    shape = (inputs // 16, outputs) if bits == 6 else (inputs // 32, outputs, 2)
    assert torch.equal(levels_of(Weight(packed, None, torch.empty(shape)), 64), levels.long())
    assert torch.equal(planes.unpack(packed), levels)


def file_rows(kind: str, shape: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> FileRows:
    """Random blocks of a file, whose scales are finite."""
    chance, (numbers, size) = np.random.default_rng(3), gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    inputs = shape[-1]
    count = int(np.prod(shape[:-1]))
    blocks = chance.integers(0, 256, (count, inputs // numbers, size), np.uint8)
    places = (208,) if kind == "Q6_K" else (0,) if kind == "Q5_0" else (0, 2)  # of 16 bits
    for place in places:
        scales = chance.uniform(-0.02, 0.02, (*blocks.shape[:2], 1)).astype(np.float16)
        blocks[..., place : place + 2] = scales.view(np.uint8)
    tensor = FileTensor(0, blocks.reshape(count, -1), kind, inputs)
    return FileRows([tensor], np.arange(count).reshape(shape[:-1]), dtype)


def values(rows: FileRows) -> Tensor:
    """[R, I] the numbers of the file, in float64, by the package gguf."""
    (tensor,) = rows._tensors
    found = gguf.dequantize(tensor.rows, gguf.GGMLQuantizationType[tensor.kind])
    return torch.from_numpy(np.array(found)).view(len(tensor.rows), -1).double()


def room(rows: FileRows, eps: float) -> Tensor:
    """[R, I] what rounding scales, and values in the middle, may take from numbers: half a step of the dtype each."""
    (tensor,) = rows._tensors
    found = levels_in(torch.from_numpy(tensor.rows), tensor.kind)
    zero = 1 << (int(tensor.kind[1]) - 1)
    apart = found.levels.double().sub(zero).unflatten(1, (found.steps.shape[1], -1)).abs()
    steps, middles = found.steps.double().abs()[..., None], found.at(zero).double().abs()[..., None]
    return (eps * (apart * steps + middles)).flatten(1)


def made(rows: FileRows) -> QuantizedLinear:
    found = Rounding(8).from_levels(rows)
    assert isinstance(found, QuantizedLinear)
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_layer_has_the_numbers_of_the_file_but_for_rounded_scales(kind: str, dtype: torch.dtype) -> None:
    rows = file_rows(kind, (OUTPUTS, INPUTS), dtype)
    layer, exact, eps = made(rows), values(rows), torch.finfo(dtype).eps / 2
    assert type(layer) is KINDS[kind]
    assert (layer.out_features, layer.in_features) == (OUTPUTS, INPUTS)
    assert layer.packed.nbytes == OUTPUTS * INPUTS * layer.bits // 8
    for part in (slice(None), slice(64, 128)):
        found = layer.written_out(part, torch.float64).double()
        assert bool(((found - exact[part]).abs() <= 1.001 * room(rows, eps)[part] + 1e-12).all())
        # Computed in the dtype, it is rounded once more.
        found = layer.written_out(part, dtype).double()
        allowed = 1.001 * (room(rows, eps)[part] + eps * (exact[part].abs() + room(rows, eps)[part]))
        assert bool(((found - exact[part]).abs() <= allowed + 1e-12).all())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 3, 40, 130])
def test_products_are_those_of_the_weight_that_is_written_out(kind: str, count: int) -> None:
    layer, bias = made(file_rows(kind, (OUTPUTS, INPUTS))), torch.randn(OUTPUTS).bfloat16()
    layer = layer.with_bias(bias)
    inputs = torch.randn(2, count, INPUTS).bfloat16() / 8
    weight = layer.written_out(slice(None), torch.float64)
    expected = inputs.double() @ weight.T + bias.double()
    summed = inputs.double().abs() @ weight.abs().T + bias.double().abs()
    with torch.no_grad():
        found = layer(inputs)
    # Many rows may be rounded to whole numbers; elsewhere the weight is rounded, and so is what the bias is added to.
    lost = lost_by_rounding(inputs, weight, layer.bits) + EPS * summed
    assert found.dtype == torch.bfloat16
    assert bool(((found.double() - expected).abs() <= 2.01 * EPS * expected.abs() + lost + 1e-6).all())


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_have_derivatives_and_may_have_other_dtypes(kind: str) -> None:
    layer = made(file_rows(kind, (OUTPUTS, INPUTS)))
    inputs = torch.randn(3, INPUTS, requires_grad=True)
    layer(inputs).sum().backward()
    assert inputs.grad is not None
    weight = layer.written_out(slice(None), torch.float32)
    torch.testing.assert_close(inputs.grad, weight.sum(0).expand(3, -1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(layer(inputs), inputs @ weight.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["Q5_0", "Q6_K"])
def test_experts_are_layers_of_a_stack(kind: str) -> None:
    rows = file_rows(kind, (3, 64, 256))
    stack = Rounding(8).from_levels(rows)
    assert isinstance(stack, QuantizedStack)
    assert stack.kind is KINDS[kind]
    exact, allowed = (each.unflatten(0, (3, 64)) for each in (values(rows), room(rows, EPS)))
    for expert, layer in enumerate(stack):
        found = layer.written_out(slice(None), torch.float64)
        assert bool(((found - exact[expert]).abs() <= 1.001 * allowed[expert] + 1e-12).all())
    given = torch.randn(5, 256).bfloat16()
    numbers = torch.tensor([0, 0, 1, 2, 2])
    plan = stack.plan(given, 2)
    assert (plan is not None) == SERVED
    if plan is not None:
        found = plan.run(given, numbers)
        with torch.no_grad():
            each = [stack[int(number)](row[None]) for number, row in zip(numbers, given, strict=True)]
        torch.testing.assert_close(found, torch.cat(each), rtol=2**-7, atol=1e-2)


def kept(kind: str, fewest: int = 8, dtype: torch.dtype = torch.bfloat16, shape: tuple[int, ...] = (64, 256)) -> bool:
    return Rounding(fewest).keeps(file_rows(kind, shape, dtype))


@pytest.mark.parametrize("kind", KINDS)
def test_levels_stay_where_kernels_multiply_many_rows_of_them(kind: str) -> None:
    assert kept(kind) == SERVED
    assert not kept(kind, fewest=4)  # wants fewer bits
    assert not kept(kind, shape=(32, 256))  # cuts a block
    assert kept(kind, dtype=torch.float16) == (SERVED and multiplies_many(torch.float16))


@pytest.mark.skipif(native.library() is None, reason="the native library was not built")
@pytest.mark.parametrize("isa", ["portable", "avx2"])
def test_no_levels_stay_where_no_kernel_reads_them(isa: str) -> None:
    used = native.isa()
    try:
        native.select_isa(isa)
    except ValueError:
        pytest.skip(f"no {isa} here")
    try:
        assert not kept("Q5_0")
    finally:
        native.select_isa(used)


def test_levels_of_several_kinds_do_not_stay() -> None:
    first, second = (file_rows(kind, (64, 256))._tensors[0] for kind in ("Q5_0", "Q6_K"))
    tensors = [first, FileTensor(64, second.rows, second.kind, 256)]
    assert not Rounding(8).keeps(FileRows(tensors, np.arange(32, 96), torch.bfloat16))
