"""New tokens of every row of a compressed layer on a CPU, in a step that is recorded."""

from __future__ import annotations

from torch import Tensor

from winnow.cache.captured_step import CapturedStep
from winnow.errors import GraphError
from winnow.kernels.recording import this_thread
from winnow.kernels.step import DecodeStep


class HostStep(CapturedStep):
    """The part of a layer in a step that is recorded: one call of the compiled library, which counts the tokens."""

    __slots__ = ()

    def run(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """As `CapturedStep.run`. Raises GraphError for tensors that the library does not read."""
        recording, recent = this_thread.recording, self._recent
        query, keys, values = query.contiguous(), keys.contiguous(), values.contiguous()
        ring = self._ring()
        kernel = DecodeStep.over(self.plan, self._tail.segments(), ring, query)
        if recording is None or kernel is None or not (kernel.takes(keys, values) and kernel.asks(query)):
            raise GraphError("the compiled library does not read queries, keys or values of this model.")
        output = kernel.run(query, keys, values, 0 if recent is None else recent.next)
        if output is None:
            raise GraphError("there is no room for another token.")
        self.taken += self._count
        kernel.note(
            recording, None if recent is None or ring is None else lambda: recent.next, query, keys, values, output
        )
        self.queries = query
        return output

    def _ring(self) -> Tensor | None:
        """The ring of queries that the token's is written to, if there is one."""
        recent = self._recent
        return recent.ring if recent is not None and recent.count else None


class TrialStep(HostStep):
    """The same of tokens on trial, whose queries wait until it is known which tokens stay."""

    __slots__ = ()

    def _ring(self) -> Tensor | None:
        return None
