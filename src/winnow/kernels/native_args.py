"""Arguments of the compiled kernels: the structs and constants of native/winnow_native.h, filled from blocks."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from winnow.kernels.formats import Block, DenseBlock, PackedBlock, Part, parts_of
from winnow.kernels.formats.bits import BLOCK_BYTES
from winnow.kernels.formats.draws import DRAWS, Recovery, draws
from winnow.kernels.formats.entries import GROUP, Entries
from winnow.kernels.formats.packed import PackedKeys, PackedValues
from winnow.kernels.formats.pruned import STEP, Pruned
from winnow.kernels.pruning_reference import Statistic

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
NO_MEMORY = 1
BAD_LENGTH = 2
BAD_PART = 4
BAD_LAYER = 5
REPEATED = {
    "winnow_decode": 0,
    "winnow_step": 1,
    "winnow_linear": 2,
    "winnow_linear_of_stack": 3,
    "winnow_mix": 4,
    "winnow_gated": 5,
    "winnow_normalize": 6,
    "winnow_normalize_sums": 7,
    "winnow_rotary": 8,
    "winnow_delta": 9,
    "winnow_convolve": 10,
    "winnow_normalize_gated": 11,
    "winnow_scan": 12,
}
"""Functions of which `winnow_repeat` makes calls."""
RECOVERIES: dict[Recovery, int] = {
    "degenerate": 0,
    "gaussian": 1,
    "exponential": 2,
    "truncated gaussian": 3,
    "truncated exponential": 4,
    "constant": 5,
}
STATISTICS: dict[Statistic, int] = {
    "pruned sizes": 0,
    "pruned numbers": 1,
    "mean": 2,
    "moments": 3,
    "pruned rms": 4,
    "pruned moments": 5,
}
Activation = Literal["swish", "gelu tanh", "gelu"]
ACTIVATIONS: dict[Activation, int] = {"swish": 0, "gelu tanh": 1, "gelu": 2}
Points = Literal["halves", "interleaved", "complex"]
POINTS: dict[Points, int] = {"halves": 0, "interleaved": 1, "complex": 2}
LINEAR_OUTPUTS = 64
"""Outputs that lie beside each other in a linear layer's weight of 4 to 6 bits, at the most."""
DELTA_KEYS = 256
"""Channels of a key that the delta rule knows, at most."""
TAPS = 8
"""Taps of a convolution, at most."""
SCAN_STATE = 256
"""Numbers of a channel's state that the state scan knows, at most."""
UNSCALED, PER_SLOT, GROUPED, CHANNEL_GROUPS = range(4)


class RowsArgs(ctypes.Structure):
    """Mirror of winnow_rows."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("data_bytes", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("scales", "zeros", "channels", "masks", "stats", "signs")),
        ("signs_bytes", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("inverse_norms", "draws", "means", "spreads", "starts")),
        *((name, ctypes.c_int64) for name in ("kept", "row_bytes", "sign_row_bytes")),
        *((name, ctypes.c_int32) for name in ("bits", "scaling", "stats_width", "recovery")),
        ("seed", ctypes.c_uint32),
        ("fill", ctypes.c_float),
        ("rotated", ctypes.c_int32),
        ("scale_group", ctypes.c_int32),
    )


class PartArgs(ctypes.Structure):
    """Mirror of winnow_part."""

    _fields_ = (
        ("starts", ctypes.c_void_p),
        ("stops", ctypes.c_void_p),
        ("slots", ctypes.c_int64),
        ("packed", ctypes.c_int32),
        ("keys", RowsArgs),
        ("values", RowsArgs),
    )


class LatentArgs(ctypes.Structure):
    """Mirror of winnow_latent."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("plain_dim", "output_dim")),
        *((name, ctypes.c_void_p) for name in ("weight", "scales")),
        ("bits", ctypes.c_int32),
    )


class RingArgs(ctypes.Structure):
    """Mirror of winnow_ring."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("keys", "values")),
        *((name, ctypes.c_int64) for name in ("capacity", "window")),
        ("seen", ctypes.c_void_p),
    )


class DecodeArgs(ctypes.Structure):
    """Mirror of winnow_decode_args."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "heads", "group_size", "queries")),
        *((name, ctypes.c_int64) for name in ("key_dim", "value_dim", "tail_capacity")),
        *((name, ctypes.c_int32) for name in ("dtype", "threads")),
        *((name, ctypes.c_float) for name in ("scaling", "softcap")),
        *((name, ctypes.c_void_p) for name in ("sinks", "parts", "part_bounds")),
        *((name, ctypes.c_void_p) for name in ("tail_keys", "tail_values", "tail_lengths", "query")),
        *((name, ctypes.c_int64) for name in ("query_row_stride", "query_head_stride", "query_token_stride")),
        *((name, ctypes.c_void_p) for name in ("output", "latent", "ring")),
    )


class PruneArgs(ctypes.Structure):
    """Mirror of winnow_prune_args."""

    _fields_ = (
        ("rows", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("slots", "dim", "row_stride")),
        *((name, ctypes.c_void_p) for name in ("inverse_norms", "head")),
        ("most", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("levels", "bounds")),
        ("level_count", ctypes.c_int64),
        ("share", ctypes.c_double),
        ("squared", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in ("starts", "masks", "counts", "stats", "kept", "signs")),
        *((name, ctypes.c_int32) for name in ("dtype", "statistic", "threads")),
    )


class RotateArgs(ctypes.Structure):
    """Mirror of winnow_rotate_args."""

    _fields_ = (
        ("rows", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("slots", "dim")),
        ("output", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("dtype", "threads")),
    )


class ColumnsArgs(ctypes.Structure):
    """Mirror of winnow_columns."""

    _fields_ = (
        ("source", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("row_stride", "head_stride", "token_stride")),
        ("target", ctypes.c_void_p),
        ("bytes", ctypes.c_int64),
        ("spare", ctypes.c_void_p),
    )


class AppendArgs(ctypes.Structure):
    """Mirror of winnow_append_args."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "heads", "tokens", "capacity")),
        ("first", ColumnsArgs),
        ("second", ColumnsArgs),
        ("lengths", ctypes.c_void_p),
        ("column", ctypes.c_int64),
        ("seen", ctypes.c_void_p),
        ("window", ctypes.c_int64),
    )


class StepArgs(ctypes.Structure):
    """Mirror of winnow_step_args."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("query", "keys", "values", "output")),
        ("column", ctypes.c_int64),
        ("threads", ctypes.c_int32),
        ("tokens", AppendArgs),
        ("queries", AppendArgs),
        ("decode", DecodeArgs),
    )


class PrefillArgs(ctypes.Structure):
    """Mirror of winnow_prefill_args."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("heads", "group_size", "queries", "tokens")),
        *((name, ctypes.c_int64) for name in ("window", "key_dim", "value_dim")),
        *((name, ctypes.c_void_p) for name in ("query", "keys", "values")),
        *((f"{name}_{of}_stride", ctypes.c_int64) for name in ("query", "key", "value") for of in ("head", "token")),
        *((name, ctypes.c_void_p) for name in ("sinks", "output", "paid")),
        *((name, ctypes.c_float) for name in ("scaling", "softcap")),
        *((name, ctypes.c_int32) for name in ("dtype", "threads")),
    )


class LinearLayer(ctypes.Structure):
    """Mirror of winnow_linear_layer."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("inputs", "outputs")),
        *((name, ctypes.c_void_p) for name in ("weight", "scales", "bias")),
        *((name, ctypes.c_int32) for name in ("bits", "dtype")),
    )


class LinearStack(ctypes.Structure):
    """Mirror of winnow_linear_stack."""

    _fields_ = (
        ("first", LinearLayer),
        *((name, ctypes.c_int64) for name in ("layers", "weight_bytes", "scales_bytes", "bias_bytes")),
    )


class GateArgs(ctypes.Structure):
    """Mirror of winnow_gate."""

    _fields_ = (
        ("activation", ctypes.c_int32),
        *((name, ctypes.c_float) for name in ("alpha", "limit", "offset")),
    )


class MixtureArgs(ctypes.Structure):
    """Mirror of winnow_mixture."""

    _fields_ = (
        *((name, LinearStack) for name in ("enter", "leave")),
        ("chosen", ctypes.c_int64),
        ("gate", GateArgs),
        ("interleaved", ctypes.c_int32),
    )


class GatedLayers(ctypes.Structure):
    """Mirror of winnow_gated_layers."""

    _fields_ = (("gate", LinearLayer), ("up", LinearLayer), ("by", GateArgs))


class NormArgs(ctypes.Structure):
    """Mirror of winnow_norm."""

    _fields_ = (
        ("width", ctypes.c_int64),
        ("weight", ctypes.c_void_p),
        *((name, ctypes.c_float) for name in ("epsilon", "offset")),
        *((name, ctypes.c_int32) for name in ("rounds_first", "dtype")),
    )


class RotaryRows(ctypes.Structure):
    """Mirror of winnow_rotary_rows."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("source", "target")),
        ("heads", ctypes.c_int64),
        *((f"{end}_{of}", ctypes.c_int64) for end in ("source", "target") for of in ("row", "head", "token")),
    )


class RotaryArgs(ctypes.Structure):
    """Mirror of winnow_rotary_args."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "tokens", "dim", "rest", "angles")),
        *((name, ctypes.c_void_p) for name in ("cos", "sin")),
        ("angles_row", ctypes.c_int64),
        *((name, RotaryRows) for name in ("queries", "keys")),
        *((name, ctypes.c_int32) for name in ("points", "dtype", "threads")),
    )


class DeltaArgs(ctypes.Structure):
    """Mirror of winnow_delta_args."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "tokens", "key_heads", "value_heads", "key_dim", "value_dim")),
        *((name, ctypes.c_void_p) for name in ("queries", "keys", "values")),
        *((f"{name}_{of}", ctypes.c_int64) for name in ("query", "key", "value") for of in ("row", "token")),
        *((name, ctypes.c_void_p) for name in ("decays", "rates", "states", "outputs")),
        *((name, ctypes.c_int32) for name in ("per_channel", "normalized", "dtype", "threads")),
    )


class ConvolutionArgs(ctypes.Structure):
    """Mirror of winnow_convolution_args."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "tokens", "channels", "taps")),
        ("inputs", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("input_row", "input_token")),
        ("states", ctypes.c_void_p),
        ("state_length", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("weight", "bias", "outputs")),
        *((name, ctypes.c_int32) for name in ("silu", "dtype", "threads")),
    )


class ScanArgs(ctypes.Structure):
    """Mirror of winnow_scan_args."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "tokens", "heads", "groups", "dim", "state_dim")),
        *((name, ctypes.c_void_p) for name in ("inputs", "steps", "enter", "leave")),
        *((f"{name}_{of}", ctypes.c_int64) for name in ("input", "step", "enter", "leave") for of in ("row", "token")),
        *((name, ctypes.c_void_p) for name in ("rates", "biases", "through", "states", "outputs")),
        *((name, ctypes.c_float) for name in ("least", "most")),
        *((name, ctypes.c_int32) for name in ("softplus", "outputs_f32", "dtype", "threads")),
    )


class CallArgs(ctypes.Structure):
    """Mirror of winnow_call."""

    _fields_ = (
        ("function", ctypes.c_int32),
        ("rows", ctypes.c_int64),
        ("arguments", ctypes.c_void_p),
        ("memory", ctypes.c_void_p * 4),
    )


class Constant(ctypes.Structure):
    """Mirror of winnow_constant."""

    _fields_ = (("name", ctypes.c_char_p), ("value", ctypes.c_int64))


def shared_constants() -> dict[str, int]:
    """All that this module takes the library to mean, as `winnow_contract` names it."""
    structs = {
        "rows": RowsArgs,
        "part": PartArgs,
        "latent": LatentArgs,
        "ring": RingArgs,
        "decode_args": DecodeArgs,
        "prune_args": PruneArgs,
        "rotate_args": RotateArgs,
        "append_args": AppendArgs,
        "step_args": StepArgs,
        "prefill_args": PrefillArgs,
        "linear_layer": LinearLayer,
        "linear_stack": LinearStack,
        "gate": GateArgs,
        "mixture": MixtureArgs,
        "gated_layers": GatedLayers,
        "norm": NormArgs,
        "rotary_rows": RotaryRows,
        "rotary_args": RotaryArgs,
        "delta_args": DeltaArgs,
        "convolution_args": ConvolutionArgs,
        "scan_args": ScanArgs,
        "call": CallArgs,
    }
    named = {
        "SCALE_GROUP": GROUP,
        "START_STEP": STEP,
        "BLOCK_BYTES": BLOCK_BYTES,
        "LINEAR_OUTPUTS": LINEAR_OUTPUTS,
        "DRAWS": DRAWS,
        "DELTA_KEYS": DELTA_KEYS,
        "TAPS": TAPS,
        "SCAN_STATE": SCAN_STATE,
        "F32": DTYPES[torch.float32],
        "BF16": DTYPES[torch.bfloat16],
        "F16": DTYPES[torch.float16],
        "NO_MEMORY": NO_MEMORY,
        "BAD_PART": BAD_PART,
        "BAD_LAYER": BAD_LAYER,
        **{name.upper(): value for name, value in POINTS.items()},
        "UNSCALED": UNSCALED,
        "PER_SLOT": PER_SLOT,
        "GROUPED": GROUPED,
        "CHANNEL_GROUPS": CHANNEL_GROUPS,
        **{name.upper().replace(" ", "_"): value for name, value in RECOVERIES.items()},
        **{name.upper().replace(" ", "_"): value for name, value in STATISTICS.items()},
        **{name.upper().replace(" ", "_"): value for name, value in ACTIVATIONS.items()},
        **{name.upper().replace("WINNOW", "CALL"): value for name, value in REPEATED.items()},
    }
    sizes = {f"sizeof(winnow_{name})": ctypes.sizeof(struct) for name, struct in structs.items()}
    return {f"WINNOW_{name}": value for name, value in named.items()} | sizes


def part_list(
    prefixes: Sequence[Block | None],
) -> tuple[ctypes.Array[PartArgs], ctypes.Array[ctypes.c_int64], list[object]]:
    """The parts of all rows, where each row's begin, and what must stay alive as long as they are used."""
    parts: list[PartArgs] = []
    bounds = [0]
    alive: list[object] = []
    known: dict[int, PartArgs] = {}
    for prefix in prefixes:
        for part in parts_of(prefix) if prefix is not None else ():
            if not part.slots:
                continue
            if id(part) not in known:
                starts, stops = part.starts, part.stops
                alive.extend((part, starts, stops))
                known[id(part)] = _part(part, starts, stops)
            parts.append(known[id(part)])
        bounds.append(len(parts))
    return (PartArgs * len(parts))(*parts), (ctypes.c_int64 * len(bounds))(*bounds), alive


def _part(part: Part, starts: Tensor, stops: Tensor) -> PartArgs:
    keys, values = sides(part)
    return PartArgs(
        starts=starts.data_ptr(),
        stops=stops.data_ptr(),
        slots=part.slots,
        packed=isinstance(part, PackedBlock),
        keys=keys,
        values=values,
    )


def sides(part: Part) -> tuple[RowsArgs, RowsArgs]:
    """Keys and values of a part, as kernels read them."""
    if isinstance(part, DenseBlock):
        return _dense_rows(part.keys), _dense_rows(part.values)
    return _rows(part.keys), _rows(part.values)


def _dense_rows(rows: Tensor) -> RowsArgs:
    return RowsArgs(data=rows.data_ptr(), data_bytes=rows.nbytes, kept=rows.shape[1], row_bytes=_row_bytes(rows))


def _rows(packed: PackedKeys | PackedValues) -> RowsArgs:
    """Keys or values of a block that `PackedBlock.check` has accepted."""
    entries = packed.entries
    channels = packed.channels if isinstance(packed, PackedKeys) else None
    args = RowsArgs(
        data=entries.data.data_ptr(),
        data_bytes=entries.data.nbytes,
        bits=entries.bits,
        kept=packed.dim if channels is None else channels.shape[1],
        row_bytes=_row_bytes(entries.data),
        channels=address(channels),
        rotated=packed.rotated,
    )
    if isinstance(packed, PackedKeys):
        args.means, args.spreads = address(packed.means), address(packed.spreads)
    if entries.bits != 16:
        args.scaling, args.scale_group = _scaling(entries), entries.group
        args.scales, args.zeros = address(entries.scales), address(entries.zeros)
    if packed.pruned is not None:
        _fill_pruned(args, packed.pruned)
    return args


def _scaling(entries: Entries) -> int:
    if entries.group:
        return CHANNEL_GROUPS
    return PER_SLOT if entries.zeros is None else GROUPED


def _fill_pruned(args: RowsArgs, pruned: Pruned) -> None:
    args.masks, args.starts = pruned.masks.data_ptr(), address(pruned.starts)
    args.stats, args.stats_width = pruned.stats.data_ptr(), pruned.stats.shape[1]
    if pruned.recovery == "constant":
        args.recovery, args.fill = RECOVERIES["constant"], pruned.fill
    # Without norms a pruned entry is the number itself that stands for it, whatever else is said.
    if pruned.inverse_norms is None:
        return
    args.inverse_norms = pruned.inverse_norms.data_ptr()
    if pruned.signs is not None:
        args.signs, args.signs_bytes = pruned.signs.data_ptr(), pruned.signs.nbytes
        args.sign_row_bytes = _row_bytes(pruned.signs)
    args.recovery = RECOVERIES[pruned.recovery]
    if pruned.recovery not in ("degenerate", "constant"):
        args.draws, args.seed = draws(pruned.recovery).data_ptr(), pruned.seed & 0xFFFFFFFF


def address(tensor: Tensor | None) -> int | None:
    """The address of a tensor's numbers; None for none."""
    return None if tensor is None else tensor.data_ptr()


def _row_bytes(rows: Tensor) -> int:
    """From row to row; 0 where rows are flat."""
    return rows.shape[1] * rows.element_size() if rows.ndim == 2 else 0
