"""One more token of every row of a compressed layer on a CPU, in a step that is recorded."""

from __future__ import annotations

from torch import Tensor

from winnow.cache.captured_step import CapturedStep
from winnow.errors import GraphError
from winnow.kernels.recording import this_thread
from winnow.kernels.step import DecodeStep


class HostStep(CapturedStep):
    """The part of a layer in a step that is recorded: one call of the compiled library, which counts the token."""

    __slots__ = ()

    def run(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """As `CapturedStep.run`. Raises GraphError for tensors that the library does not read."""
        recording, recent = this_thread.recording, self._recent
        ring = recent.ring if recent is not None and recent.count else None
        query, keys, values = query.contiguous(), keys.contiguous(), values.contiguous()
        kernel = DecodeStep.over(self.plan, self._tail.segments(), ring, query)
        if recording is None or kernel is None or not (kernel.takes(keys, values) and kernel.asks(query)):
            raise GraphError("the compiled library does not read queries, keys or values of this model.")
        output = kernel.run(query, keys, values, 0 if recent is None else recent.next)
        if output is None:
            raise GraphError("there is no room for another token.")
        self.tokens += 1
        kernel.note(recording, None if recent is None else lambda: recent.next, query, keys, values, output)
        return output
