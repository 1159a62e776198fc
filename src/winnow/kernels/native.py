"""The compiled kernels through ctypes: no torch ABI and no Python ABI, one library per platform.

Environment: WINNOW_NATIVE_LIBRARY names the library file, WINNOW_KERNELS=reference leaves it aside, WINNOW_ISA (one of
`ISAS`) chooses its instruction set.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from winnow.kernels.environment import chosen, warn_of
from winnow.kernels.formats import Block
from winnow.kernels.head_matrices import HeadMatrices
from winnow.kernels.native_args import (
    BAD_PART,
    DTYPES,
    NO_MEMORY,
    AppendArgs,
    CallArgs,
    Constant,
    ConvolutionArgs,
    DecodeArgs,
    DeltaArgs,
    GatedLayers,
    LatentArgs,
    LinearLayer,
    LinearStack,
    MixtureArgs,
    NormArgs,
    PrefillArgs,
    PruneArgs,
    RingArgs,
    RotaryArgs,
    RotateArgs,
    ScanArgs,
    StepArgs,
    address,
    part_list,
    shared_constants,
)
from winnow.kernels.openmp import lend_threads
from winnow.kernels.recording import LibraryCall, this_thread
from winnow.kernels.segments import AttentionSpec, Ring, TailSegments
from winnow.kernels.sizes import AskedSizes, LayerSizes, check_layer, check_query

ABI = 25
ISAS = ("amx", "zen4", "zen5", "avx512bf16", "avx512vnni", "avx512", "avx2", "portable")
LIBRARY_NAME = "libwinnow_native.dylib" if sys.platform == "darwin" else "libwinnow_native.so"

_NUMBERS = {dtype: torch.empty(1, dtype=dtype, device="cpu") for dtype in DTYPES}
_REMEDY = (
    "Decoding falls back to the torch reference, which is several times slower. Install a C++ compiler and "
    "reinstall winnow-kv, or point WINNOW_NATIVE_LIBRARY at the library; WINNOW_KERNELS=reference silences this."
)


_COUNT, _INT, _ADDRESS, _TEXT = ctypes.c_int64, ctypes.c_int32, ctypes.c_void_p, ctypes.c_char_p
_FUNCTIONS: dict[str, tuple[Sequence[Any], Any]] = {
    "winnow_decode": ([ctypes.POINTER(DecodeArgs)], _INT),
    "winnow_prune": ([ctypes.POINTER(PruneArgs)], _INT),
    "winnow_take": ([ctypes.POINTER(PruneArgs)], _INT),
    "winnow_rotate": ([ctypes.POINTER(RotateArgs)], _INT),
    "winnow_append": ([ctypes.POINTER(AppendArgs)], _INT),
    "winnow_step": ([ctypes.POINTER(StepArgs)], _INT),
    "winnow_prefill": ([ctypes.POINTER(PrefillArgs)], _INT),
    "winnow_prefill_lays": ([_INT, _COUNT, _COUNT], _INT),
    "winnow_multiplies_many": ([_INT], _INT),
    "winnow_linear": ([ctypes.POINTER(LinearLayer), _COUNT, _ADDRESS, _ADDRESS, _INT], _INT),
    "winnow_linear_of_stack": ([ctypes.POINTER(LinearStack), _COUNT, _ADDRESS, _ADDRESS, _ADDRESS, _INT], _INT),
    "winnow_mix": ([ctypes.POINTER(MixtureArgs), _COUNT, _ADDRESS, _ADDRESS, _ADDRESS, _ADDRESS, _INT], _INT),
    "winnow_nibble_outputs": ([_INT], _COUNT),
    "winnow_gated": ([ctypes.POINTER(GatedLayers), _COUNT, _ADDRESS, _ADDRESS, _INT], _INT),
    "winnow_write_out": ([ctypes.POINTER(LinearLayer), _COUNT, _COUNT, _ADDRESS, _INT], _INT),
    "winnow_normalize": ([ctypes.POINTER(NormArgs), _COUNT, _ADDRESS, _ADDRESS, _INT], _INT),
    "winnow_normalize_sums": ([ctypes.POINTER(NormArgs), _COUNT, *[_ADDRESS] * 4, _INT], _INT),
    "winnow_normalize_gated": ([ctypes.POINTER(NormArgs), _COUNT, *[_ADDRESS] * 3, _INT], _INT),
    "winnow_rotary": ([ctypes.POINTER(RotaryArgs)], _INT),
    "winnow_delta": ([ctypes.POINTER(DeltaArgs)], _INT),
    "winnow_convolve": ([ctypes.POINTER(ConvolutionArgs)], _INT),
    "winnow_scan": ([ctypes.POINTER(ScanArgs)], _INT),
    "winnow_repeat": ([ctypes.POINTER(CallArgs), _COUNT, _INT, ctypes.POINTER(_COUNT)], _INT),
    "winnow_isa": ([], _TEXT),
    "winnow_select_isa": ([_TEXT], _INT),
    "winnow_read_sum": ([_ADDRESS, _COUNT, _INT], _COUNT),
    "winnow_multiply": ([_COUNT, _INT, _INT, _INT], _COUNT),
    "winnow_lend_threads": ([_ADDRESS, _ADDRESS], None),
}
"""Types of arguments and of what is returned, as in `native/winnow_native.h`."""


def library_candidates() -> Iterator[Path]:
    """Paths at which the library may be, best guess first."""
    named = os.environ.get("WINNOW_NATIVE_LIBRARY")
    if named:
        yield Path(named).absolute()  # the loader looks for bare names in folders of the system
        return
    yield Path(__file__).with_name(LIBRARY_NAME)
    # An editable install keeps the package in the source tree and the library in site-packages.
    try:
        files = importlib.metadata.distribution("winnow-kv").files or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == LIBRARY_NAME:
            yield Path(str(file.locate()))


def open_library(path: Path) -> ctypes.CDLL:
    """Load the library and declare its functions. Raises OSError when it is absent, broken or of another version."""
    library = ctypes.CDLL(str(path))
    _check_contract(library, path)
    for name, (arguments, result) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    lend_threads(library)
    _check_isa(library.winnow_isa().decode())
    return library


def _check_isa(used: str) -> None:
    best = f"the best one of this machine is used, {used}"
    if chosen("WINNOW_ISA", ISAS, best) not in (None, used):
        warn_of("WINNOW_ISA", "is an instruction set that this machine does not have", best, ISAS)


def _check_contract(library: ctypes.CDLL, path: Path) -> None:
    try:
        library.winnow_contract.restype = ctypes.POINTER(Constant)
    except AttributeError as error:
        raise OSError(f"{path} is no kernel library of this version of Winnow; reinstall winnow-kv") from error
    listed = takewhile(lambda entry: entry.name, map(library.winnow_contract().__getitem__, count()))
    found = {entry.name.decode(): entry.value for entry in listed}
    expected = {"WINNOW_ABI": ABI, **shared_constants()}
    wrong = [name for name in {**expected, **found} if found.get(name) != expected.get(name)]
    if wrong:
        differing = ", ".join(f"{name} is {found.get(name)} instead of {expected.get(name)}" for name in wrong)
        raise OSError(f"{path} is of another version of Winnow: {differing}; reinstall winnow-kv")


@cache
def library() -> ctypes.CDLL | None:
    """The native library; None, with one warning unless the reference was asked for, when there is none."""
    if chosen("WINNOW_KERNELS", ["reference"], "the native kernels are used where there are any") == "reference":
        return None
    reason = f"{os.environ.get('WINNOW_NATIVE_LIBRARY', LIBRARY_NAME)} was not found"
    for path in library_candidates():
        if not path.exists():
            continue
        try:
            return open_library(path)
        except OSError as error:
            reason = str(error)
    warnings.warn(f"Winnow's native kernels are not available: {reason}. {_REMEDY}", RuntimeWarning, stacklevel=2)
    return None


def loaded_library() -> ctypes.CDLL:
    """The native library; RuntimeError where there is none."""
    found = library()
    if found is None:
        raise RuntimeError("the native kernels are not available; use the reference (ReferencePlan)")
    return found


def reads(tensor: Tensor) -> bool:
    """True for a tensor that the native kernels can read: on the CPU, in a dtype they know, with a library."""
    return tensor.device.type == "cpu" and tensor.dtype in DTYPES and library() is not None


def supports(tail: TailSegments) -> bool:
    """True where the native kernels can serve this layer."""
    return reads(tail.keys)


class NativePlan:
    """Decode attention of one layer through the native library.

    The argument struct is filled once; a step sets the query, the output and the thread count. The output is
    fresh memory at every step. Keeps every tensor it points to alive. Several plans may run at once, but one plan
    only in one thread at a time.
    """

    def __init__(
        self,
        prefixes: Sequence[Block | None],
        tail: TailSegments,
        spec: AttentionSpec,
        matrices: HeadMatrices | None = None,
        ring: Ring | None = None,
    ) -> None:
        """matrices: what heads make of latents, where keys are latents and values the rotated keys of the same tokens.
        ring: tokens before those of the tail, which then are the new ones alone, and see the last `window` of all.

        Raises ValueError when these, prefixes and tail do not fit together.
        """
        self.sizes = check_layer(prefixes, tail)
        if ring is not None and check_layer(prefixes, ring.columns) != self.sizes:
            raise ValueError(f"the ring {list(ring.columns.keys.shape)} does not fit the tail {list(tail.keys.shape)}")
        self.asked = asked_sizes(self.sizes, matrices, tail.keys)
        self._decode = loaded_library().winnow_decode
        self._dtype = tail.keys.dtype
        rows, heads, key_dim, value_dim = self.sizes
        sinks = None if spec.sinks is None else spec.sinks.detach().to("cpu", torch.float32, copy=True).contiguous()
        self._sinks = sinks
        parts, bounds, alive = part_list(prefixes)
        latent = None if matrices is None else _latent_args(matrices)
        before = None if ring is None else _ring_args(ring)
        self._alive = (tail, parts, bounds, alive, matrices, latent, ring, before)
        self._args = DecodeArgs(
            rows=rows,
            heads=heads,
            key_dim=key_dim,
            value_dim=value_dim,
            tail_capacity=tail.keys.shape[2],
            dtype=DTYPES[self._dtype],
            scaling=spec.scaling,
            softcap=spec.softcap or 0.0,
            sinks=None if sinks is None else sinks.data_ptr(),
            parts=ctypes.addressof(parts),
            part_bounds=ctypes.addressof(bounds),
            tail_keys=tail.keys.data_ptr(),
            tail_values=tail.values.data_ptr(),
            tail_lengths=tail.lengths.data_ptr(),
            latent=None if latent is None else ctypes.addressof(latent),
            ring=None if before is None else ctypes.addressof(before),
        )
        self._reference = ctypes.byref(self._args)
        self._accepted: torch.Size | None = None
        self._like = torch.empty(0, device="cpu")

    def run(self, query: Tensor) -> Tensor:
        """query [R, Hq, Q, D] -> output [R, Q, Hq, Dv]; the tail already holds the Q new tokens.

        Raises ValueError for a query that does not fit or a tail length beyond the capacity.
        """
        if query.shape != self._accepted or query.dtype is not self._dtype or not query.is_cpu:
            self._accept(query)
        strides = query.stride()
        if strides[3] != 1:
            query = query.contiguous()
            strides = query.stride()
        out = torch.empty_like(self._like)
        args = self._args
        args.threads = torch.get_num_threads()
        args.query_row_stride, args.query_head_stride, args.query_token_stride, _ = strides
        args.query = query.data_ptr()
        args.output = out.data_ptr()
        status = self._decode(self._reference)
        if status:
            raise error_of(status)
        recording = this_thread.recording
        if recording is not None:
            kept = DecodeArgs.from_buffer_copy(args)  # other queries give these other memory
            recording.note_call(LibraryCall("winnow_decode", kept, error_of), self, query, out)
        return out

    def arguments(self, query: Tensor) -> DecodeArgs:
        """The plan's arguments, to keep and to change, for contiguous queries as this one [R, Hq, Q, D].

        They point where the plan's do. Raises ValueError for a query that does not fit.
        """
        args = DecodeArgs.from_buffer_copy(self._args)
        args.group_size = check_query(query, self.asked, self._dtype, self._sinks)
        _, query_heads, args.queries, dim = query.shape
        args.query_token_stride, args.query_head_stride = dim, args.queries * dim
        args.query_row_stride = query_heads * args.query_head_stride
        return args

    def nbytes(self) -> int:
        """Bytes of tensors beyond prefixes and tail: the copied sinks."""
        return 0 if self._sinks is None else self._sinks.nbytes

    def _accept(self, query: Tensor) -> None:
        """Set what depends on the query's shape only, which rarely changes between steps."""
        args = self._args
        if not query.is_cpu:
            raise ValueError(f"query is on {query.device} but the cache is on the CPU; move one of them")
        args.group_size = check_query(query, self.asked, self._dtype, self._sinks)
        rows, query_heads, args.queries, _ = query.shape
        self._like = standing_for(self._dtype, (rows, query.shape[2], query_heads, self.asked.output_dim))
        self._accepted = query.shape


def asked_sizes(sizes: LayerSizes, matrices: HeadMatrices | None, keys: Tensor) -> AskedSizes:
    """Sizes of queries and outputs of a layer. Raises ValueError for matrices that are not for these latents."""
    if matrices is None:
        return sizes.asked()
    matrices.check(sizes, keys)
    return AskedSizes(sizes.rows, 1, len(matrices.weight), matrices.plain + sizes.value_dim, matrices.outputs)


def _latent_args(matrices: HeadMatrices) -> LatentArgs:
    bits = 16 if matrices.scales is None else 8
    return LatentArgs(matrices.plain, matrices.outputs, matrices.weight.data_ptr(), address(matrices.scales), bits)


def _ring_args(ring: Ring) -> RingArgs:
    keys, values = ring.columns.keys, ring.columns.values
    return RingArgs(keys.data_ptr(), values.data_ptr(), keys.shape[2], ring.window, ring.seen.data_ptr())


def standing_for(dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """A tensor of one number: `torch.empty_like` of it is contiguous, and faster than a tensor of shape and dtype."""
    return _NUMBERS[dtype].expand(*shape)


def error_of(status: int) -> Exception:
    """The error that a status of the library's decode attention tells."""
    if status == NO_MEMORY:
        return MemoryError("no memory for the partial results of decode attention")
    if status == BAD_PART:
        return ValueError("the sizes of a block contradict each other: its memory was changed after it was checked")
    return ValueError("a tail length is negative or beyond the tail's capacity")


def select_isa(name: str) -> None:
    """Use another instruction set of the library, for tests; ValueError when this machine cannot run it."""
    loaded = library()
    if loaded is None or loaded.winnow_select_isa(name.encode()):
        raise ValueError(f"instruction set {name!r} is not available")
    isa.cache_clear()


@cache
def isa() -> str:
    """The instruction set in use; RuntimeError without a library."""
    # Remembered, as every layer asks for it at every token.
    return str(loaded_library().winnow_isa().decode())


def is_zen() -> bool:
    """True if the kernels in use are those for AMD's processors with AVX-512 BF16; RuntimeError without a library."""
    return isa().startswith("zen")


def read_sum(tensor: Tensor) -> int:
    """Read a contiguous CPU tensor once, as fast as the kernels could; the benchmark's speed of light."""
    total: int = loaded_library().winnow_read_sum(
        tensor.data_ptr(), tensor.numel() * tensor.element_size(), torch.get_num_threads()
    )
    return total


def multiply(products: int, bits: int, dtype: torch.dtype) -> int:
    """Multiply and add up at least so many numbers in registers, as attention without tiles does, and return how many.

    Numbers of a model of a dtype meet stored ones of `bits` bits; 16 are the model's own. With `read_sum` the speed of
    light for the kernels.
    """
    done: int = loaded_library().winnow_multiply(products, bits, DTYPES[dtype], torch.get_num_threads())
    return done
