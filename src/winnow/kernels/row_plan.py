"""Functions of rows through the compiled library, whose arguments are filled once."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from winnow.kernels import native
from winnow.kernels.native_args import NO_MEMORY
from winnow.kernels.recording import CallRecording, LibraryCall, this_thread


class RowFunction:
    """A function of the library from rows of inputs to rows of outputs, both of one dtype, with its arguments.

    Keeps the memory that the arguments point to alive. Serves several threads at once.
    """

    place: tuple[object, ...] = ()
    """That of the parameters that it was made for, as their layer tells it."""

    def __init__(
        self,
        function: Callable[..., int],
        arguments: ctypes.Structure,
        alive: Sequence[Tensor],
        dtype: torch.dtype,
        inputs: int,
        outputs: int,
    ) -> None:
        """alive: tensors that the arguments point to; inputs and outputs: numbers of a row."""
        self.dtype, self.inputs, self.outputs = dtype, inputs, outputs
        self._alive = [each.detach() for each in alive]
        self._arguments = arguments
        self._reference = ctypes.byref(arguments)
        self._run = function
        self._last: tuple[torch.Size | None, Tensor, int] = (None, torch.empty(0, device="cpu"), 0)

    def refusal(self) -> str:
        """Words for a kernel that there is not."""
        return f"no kernel here takes {self.dtype}"

    def error_of(self, rows: int, status: int) -> Exception:
        """The error that a status of the function tells, for so many rows of inputs."""
        return MemoryError(f"no memory for {rows} rows") if status == NO_MEMORY else ValueError(self.refusal())

    def _call(self, rows: int, *memory: Tensor) -> None:
        """Calls the function for so many rows, which are in tensors that it takes in their order."""
        places = [self._reference, rows, *[each.data_ptr() for each in memory]]
        status = self._run(*places, torch.get_num_threads())
        if status:
            raise self.error_of(rows, status)
        recording = this_thread.recording
        if recording is not None:
            self._note(recording, rows, *memory)

    def _note(self, recording: CallRecording, rows: int, *memory: Tensor) -> None:
        """Has a recorder note a call."""
        self._note_call(recording, self._run.__name__, rows, *memory)

    def _note_call(self, recording: CallRecording, function: str, rows: int, *memory: Tensor) -> None:
        """Has a recorder note a call of a function that takes the same arguments."""
        places = tuple(each.data_ptr() for each in memory)
        call = LibraryCall(function, self._arguments, partial(self.error_of, rows), rows, places)
        recording.note_call(call, self, *memory)

    def _accept(self, inputs: Tensor) -> tuple[Tensor, int]:
        """All that depends on the shape of inputs only, which rarely changes."""
        if inputs.shape[-1:] != (self.inputs,):
            raise ValueError(f"inputs {list(inputs.shape)} do not fit a layer of {self.inputs} inputs")
        like = native.standing_for(self.dtype, (*inputs.shape[:-1], self.outputs))
        rows = inputs.numel() // self.inputs
        self._last = (inputs.shape, like, rows)
        return like, rows


class RowPlan(RowFunction):
    """One that takes nothing but the rows."""

    def run(self, inputs: Tensor) -> Tensor:
        """Inputs [..., I] -> outputs [..., O], both in the plan's dtype.

        Raises ValueError for inputs that do not fit, and where there is no such kernel; MemoryError without memory.
        """
        shape, like, rows = self._last
        if inputs.shape != shape:
            like, rows = self._accept(inputs)
        if inputs.dtype is not self.dtype or not inputs.is_cpu:
            raise ValueError(f"inputs of {inputs.dtype} on {inputs.device} do not fit a layer of {self.dtype} on a CPU")
        inputs, outputs = inputs.contiguous(), torch.empty_like(like)
        self._call(rows, inputs, outputs)
        return outputs
