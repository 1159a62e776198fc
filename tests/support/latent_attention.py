"""Decode attention of heads that make keys and values of latents: random layers, and their solution in float64.

The oracle makes the keys and values of every head, as the model does; it shares no code with the kernels.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from support.integer_rounding import Integers, added_up, multiplies_integers
from support.packed_attention import Format, Maker, guarded
from support.packed_oracle import oracle_prefix
from support.weight_rounding import ROUNDING, rounds_weights
from winnow.kernels import AttentionSpec, Block, DenseBlock, Parts, TailSegments, native, parts_of
from winnow.kernels.head_matrices import HeadMatrices

UNIT = {torch.float32: 2**-24, torch.bfloat16: 2**-8, torch.float16: 2**-11}
"""Largest relative error of a number that is rounded to a dtype."""
SUMMED = 2**-21
"""Largest error of sums in fp32, relative to the sum of magnitudes."""
SECOND_ORDER = 1.05
"""Room for rounding of what was rounded before."""
SMALLEST = {torch.float32: 1e-6, torch.bfloat16: 1e-6, torch.float16: 2e-5}
"""Error whatever the size of numbers: the least of fp16 are 6e-8, of which sums take many."""

Forms = tuple[Format, Format] | None
"""Formats of latents and of rotated keys; None: dense."""


class Layer(NamedTuple):
    """Sizes of a layer and the formats of its prefixes; a row has the prefix of its index, or none."""

    prefixes: list[list[Forms]]
    """Per prefix the formats of every part."""
    slots: list[list[int]]
    """Per prefix and part."""
    rows: list[int | None]
    lengths: list[int]
    """Tail tokens of every row, new ones included."""
    dim: int = 64
    rotated: int = 32
    heads: int = 4
    plain: int = 16
    outputs: int = 16
    queries: int = 1
    capacity: int = 8
    softcap: float | None = None
    sinks: bool = False
    bits: int = 16
    """Bits of the matrices: 16 or 8."""
    chosen: bool = False
    """True for matrices that choose latents as they are, whose products no dtype rounds."""


class Problem(NamedTuple):
    """Random tensors for a layer."""

    query: Tensor
    prefixes: list[Block | None]
    tail: TailSegments
    spec: AttentionSpec
    matrices: HeadMatrices

    def plan(self) -> native.NativePlan:
        return native.NativePlan(self.prefixes, self.tail, self.spec, self.matrices)


class Solution(NamedTuple):
    """Outputs [R, Q, Hq, outputs] in float64, and how far numbers may be off before they are rounded at last."""

    expected: Tensor
    off: Tensor
    """In any instruction set: what asks latents, and their sums, are rounded to the model's dtype."""
    off_by_weights: Tensor
    """Besides where weights of dense latents are rounded to bfloat16."""
    off_by_integers: Tensor
    """Besides where queries and weights of packed latents are rounded to int16."""


def build(layer: Layer, dtype: torch.dtype = torch.float32, seed: int = 0) -> Problem:
    """Tensors of a layer, right before memory that must not be read. The tail is NaN behind its valid lengths."""
    make = Maker(dtype, seed)
    blocks = [_block(make, layer, *each) for each in zip(layer.prefixes, layer.slots, strict=True)]
    query = make.normal(len(layer.rows), layer.queries, layer.heads, layer.plain + layer.rotated).transpose(1, 2)
    sinks = torch.randn(layer.heads, generator=make.generator) if layer.sinks else None
    spec = AttentionSpec((layer.plain + layer.rotated) ** -0.5, layer.softcap, sinks)
    prefixes = [None if row is None else blocks[row] for row in layer.rows]
    return Problem(query, prefixes, _tail(make, layer), spec, _matrices(make, layer))


def _block(make: Maker, layer: Layer, forms: list[Forms], slots: list[int]) -> Block:
    parts = []
    for form, count in zip(forms, slots, strict=True):
        part = make.part(form, [count], layer.dim, layer.rotated)
        dense = isinstance(part, DenseBlock)
        parts.append(DenseBlock(guarded(part.keys), guarded(part.values), part.offsets) if dense else part)
    return parts[0] if len(parts) == 1 else Parts(tuple(parts))


def _tail(make: Maker, layer: Layer) -> TailSegments:
    held = [make.normal(len(layer.rows), 1, layer.capacity, dim) for dim in (layer.dim, layer.rotated)]
    for row, length in enumerate(layer.lengths):
        for each in held:
            each[row, :, length:] = math.nan
    return TailSegments(*map(guarded, held), torch.tensor(layer.lengths))


def _matrices(make: Maker, layer: Layer) -> HeadMatrices:
    rows, size = layer.plain + layer.outputs, layer.dim
    if layer.chosen:
        weight = torch.nn.functional.one_hot(torch.arange(layer.heads * rows) * 7 % size, size).to(make.dtype)
        return HeadMatrices(guarded(weight.view(layer.heads, rows, size)), layer.plain)
    if layer.bits == 16:
        return HeadMatrices(guarded(make.normal(layer.heads, rows, size) * size**-0.5), layer.plain)
    weight = (make.below(256, layer.heads, rows, size) - 128).to(torch.int8)
    scales = make.either_scales(8, layer.heads, rows) * size**-0.5
    return HeadMatrices(guarded(weight), layer.plain, guarded(scales))


def written_out(matrices: HeadMatrices) -> tuple[Tensor, Tensor]:
    """Matrices of keys [Hq, plain, C] and of values [Hq, outputs, C] in float64."""
    weight = matrices.weight.double()
    weight = weight if matrices.scales is None else weight * matrices.scales.double()[..., None]
    return weight[:, : matrices.plain], weight[:, matrices.plain :]


class _Held(NamedTuple):
    """Tokens of a row in float64."""

    latents: Tensor
    """[N, C]"""
    rotated: Tensor
    """[N, Dr]"""
    dense: Tensor
    """[N], 1 where latents are dense."""
    prefix: int
    """Tokens of the prefix, the first ones."""
    integers: list[tuple[slice, Integers]]
    """Those of them that lie as integers."""


def _held(problem: Problem, row: int) -> _Held:
    block, length = problem.prefixes[row], int(problem.tail.lengths[row])
    latents, rotated = ([each[row, 0, :length].double()] for each in (problem.tail.keys, problem.tail.values))
    dense, prefix, integers = [torch.ones(length, dtype=torch.float64)], 0, []
    parts = [] if block is None else [*zip(parts_of(block), oracle_prefix(block), strict=True)]
    for i, (part, heads) in enumerate(parts):
        of_latents, of_rotated, _ = map(torch.from_numpy, heads[0])
        latents.insert(i, of_latents)
        rotated.insert(i, of_rotated)
        dense.insert(i, torch.full((len(of_latents),), float(isinstance(part, DenseBlock)), dtype=torch.float64))
        if (found := Integers.of(part, of_latents, of_rotated)) is not None:
            integers.append((slice(prefix, prefix + len(of_latents)), found))
        prefix += len(of_latents)
    return _Held(torch.cat(latents), torch.cat(rotated), torch.cat(dense), prefix, integers)


def solved(problem: Problem) -> Solution:
    """The solution of a problem, one row and head at a time."""
    query = problem.query
    rows, heads, tokens, _ = query.shape
    found = torch.zeros(4, rows, tokens, heads, problem.matrices.outputs, dtype=torch.float64)
    matrices = [*zip(*written_out(problem.matrices), strict=True)]
    for row in range(rows):
        held = _held(problem, row)
        for head in range(heads):
            found[:, row, :, head] = _head(problem, held, query[row, head].double(), matrices[head], head)
    return Solution(*found)


def _head(problem: Problem, held: _Held, query: Tensor, matrices: tuple[Tensor, Tensor], head: int) -> Tensor:
    """[4, Q, outputs]: outputs of a head for queries [Q, D], and the three ways in which they may be off.

    matrices: the head's, of keys and of values.
    """
    of_keys, of_values = matrices
    keys = torch.cat([held.latents @ of_keys.T, held.rotated], dim=1)
    values = held.latents @ of_values.T
    seen = _seen(held, len(query))
    weights = _weights(problem.spec, query @ keys.T, seen, head)
    outputs = weights @ values
    dtype = problem.query.dtype
    unsure = _largest(problem, _product_errors(problem, held, query, of_keys), seen)
    sums, sizes = weights @ held.latents, weights @ held.latents.abs()
    off = torch.expm1(2 * unsure)[:, None] * (weights @ values.abs())
    off += added_up(_rounded_by(sums, dtype), of_values) + SUMMED * sizes @ of_values.abs().T
    dense = weights * held.dense
    off_by_weights = ROUNDING * (dense @ values.abs() + dense.sum(1, keepdim=True) * outputs.abs())
    by_queries = _largest(problem, _integer_errors(held, query, of_keys), seen)
    more = torch.expm1(2 * (unsure + by_queries)) - torch.expm1(2 * unsure)
    off_by_integers = more[:, None] * (weights @ values.abs())
    for span, integers in held.integers:
        off_by_integers += integers.off_in_sums(weights[:, span], of_values)
    return torch.stack([outputs, off, off_by_weights, off_by_integers])


def _seen(held: _Held, tokens: int) -> Tensor:
    """[Q, N]: tokens that the new ones see, of which the last sees all."""
    last = len(held.dense) - held.prefix - (tokens - 1 - torch.arange(tokens))
    return torch.arange(len(held.dense)) < held.prefix + last.clamp(min=0)[:, None]


def _weights(spec: AttentionSpec, products: Tensor, seen: Tensor, head: int) -> Tensor:
    """[Q, N], all zero for a query that sees nothing."""
    logits = spec.scaling * products
    if spec.softcap is not None:
        logits = spec.softcap * torch.tanh(logits / spec.softcap)
    logits = logits.masked_fill(~seen, -math.inf)
    sink = logits.new_full((len(logits), 1), -math.inf if spec.sinks is None else float(spec.sinks[head]))
    return torch.softmax(torch.cat([logits, sink], dim=1), dim=1)[:, :-1].nan_to_num(0.0)


def _product_errors(problem: Problem, held: _Held, query: Tensor, of_keys: Tensor) -> Tensor:
    """[Q, N]: how far products may be off, since what asks latents is rounded and products are summed up."""
    plain, rotated = query[:, : len(of_keys)], query[:, len(of_keys) :]
    errors = added_up(_rounded_by(plain @ of_keys, problem.query.dtype), held.latents)
    return errors + SUMMED * (plain.abs() @ of_keys.abs() @ held.latents.abs().T + rotated.abs() @ held.rotated.abs().T)


def _integer_errors(held: _Held, query: Tensor, of_keys: Tensor) -> Tensor:
    """[Q, N]: how far they may be off besides, since queries that meet integers are rounded to int16."""
    plain, rotated = query[:, : len(of_keys)], query[:, len(of_keys) :]
    errors = query.new_zeros(len(query), len(held.dense))
    for span, integers in held.integers:
        errors[:, span] = integers.off_in_logits(plain @ of_keys, rotated)
    return errors


def _largest(problem: Problem, errors: Tensor, seen: Tensor) -> Tensor:
    """[Q]: the largest error of logits, of products' errors [Q, N]."""
    nothing = errors.new_zeros(len(errors), 1)
    return problem.spec.scaling * torch.cat([errors.masked_fill(~seen, 0), nothing], dim=1).amax(1)


def _rounded_by(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """Sizes of what rounding to a dtype may change, zero for numbers that it has."""
    return torch.where(numbers.to(dtype).double() == numbers, 0, UNIT[dtype] * numbers.abs())


def assert_solved(actual: Tensor, solution: Solution, what: str = "") -> None:
    """Assert that what the native kernels in use give is the solution, as precisely as they promise."""
    expected, dtype = solution.expected, actual.dtype
    assert actual.is_contiguous()
    allowed = SECOND_ORDER * solution.off + UNIT[dtype] * expected.abs() + SMALLEST[dtype]
    if rounds_weights(dtype):
        allowed = allowed + SECOND_ORDER * solution.off_by_weights
    if multiplies_integers(dtype):
        allowed = allowed + SECOND_ORDER * solution.off_by_integers
    error = (actual.double() - expected).abs()
    off = ~(error <= allowed)
    assert not off.any(), f"{what}: {int(off.sum())} of {off.numel()} are off, by up to {float(error[off].max()):.3g}"


def check(problem: Problem, isas: list[str]) -> None:
    """The kernels of every instruction set against the solution."""
    solution = solved(problem)
    for isa in isas:
        native.select_isa(isa)
        assert_solved(problem.plan().run(problem.query), solution, isa)
