"""Linear layers whose weight is stored in few bits and written out for many rows, a part of it at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn

from winnow.kernels import native
from winnow.kernels.linear import LinearPlan, multiplies_many, outruns_torch
from winnow.models.carrier import Carrier
from winnow.models.dtypes import torch_multiplies
from winnow.models.parts import parts_of
from winnow.models.planned import PlannedLinear, place_of
from winnow.models.room import Room


class QuantizedLinear(PlannedLinear, ABC):
    """A linear layer whose weight has few bits a value.

    Few rows of inputs are multiplied as the weight is stored: by Winnow's kernels where they outrun torch's, else by
    torch's, which read bfloat16. So are many rows where Winnow's kernels are made for them. Elsewhere these, and what
    kernels do not read, are multiplied by the weight in the dtype of the inputs, or in float32 where torch has no
    library for products of that dtype, a part at a time.
    """

    compiled_few: int
    """Rows up to which Winnow's kernels are faster than to write the weight out, where they are not made for many."""
    stored_names: tuple[str, ...]
    """Parameters that the weight is written as, the scales among them.

    Files of contexts know a model by its parameters in their order: that of these, then the bias.
    """

    scales: nn.Parameter
    """In the dtype that the model computes in."""
    bias: nn.Parameter | None

    def __init__(self, stored: Sequence[Tensor], bias: Tensor | None) -> None:
        """stored: what the weight is written as; bias: [O]."""
        super().__init__()
        self.out_features, self.in_features = self.shape_of(stored)
        for name, tensor in zip(self.stored_names, stored, strict=True):
            self.register_parameter(name, nn.Parameter(tensor, requires_grad=False))
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias.detach(), requires_grad=False))

    @staticmethod
    @abstractmethod
    def room_for(shape: Sequence[int], dtype: torch.dtype, room: Room) -> list[Tensor]:
        """Memory that weights [..., O, I] are written to."""

    @staticmethod
    @abstractmethod
    def shape_of(stored: Sequence[Tensor]) -> tuple[int, int]:
        """Outputs and inputs of what is written."""

    def with_bias(self, bias: Tensor | None) -> Self:
        """The same layer with another bias [O]; the weight is the same memory."""
        return type(self)([self.get_parameter(name).detach() for name in self.stored_names], bias)

    @abstractmethod
    def is_compiled(self) -> bool:
        """True if Winnow's kernels read such a weight on a processor on which they outrun torch's."""

    def product(self, rows: Tensor) -> Tensor | None:
        """rows [N, I] in bfloat16 -> [N, O], by torch's kernel, without the bias.

        None where it reads no such layer, and where it is slower for so many rows than to write the weight out.
        """
        return None

    @abstractmethod
    def written_out(self, part: slice, dtype: torch.dtype) -> Tensor:
        """[o, I] the weights of some outputs, a whole number of blocks."""

    def forward(self, inputs: Tensor) -> Tensor:
        """inputs [..., I] -> [..., O]"""
        plan = self.fastest_plan(inputs)
        if plan is not None:
            return plan.run(inputs)
        if isinstance(inputs, Carrier):
            return inputs.through(self.forward, self.out_features)
        rows = inputs.reshape(-1, self.in_features)
        # torch's kernels for such weights know no derivatives.
        followed = torch.is_grad_enabled() and (rows.requires_grad or self.scales.requires_grad)
        read = inputs.dtype == self.scales.dtype == torch.bfloat16 and not followed
        outputs = self.product(rows) if read else None
        outputs = self._times(rows) if outputs is None else outputs
        outputs = outputs.view(*inputs.shape[:-1], self.out_features)
        return outputs if self.bias is None else outputs + self.bias

    def place(self) -> tuple[object, ...]:
        """That of its parameters."""
        held = self._parameters
        scales, bias = held["scales"], held["bias"]
        if scales is None:
            raise KeyError("scales")
        place = place_of(held[self.stored_names[0]])
        return *place, scales.data_ptr(), None if bias is None else bias.data_ptr()

    def fastest_plan(self, inputs: Tensor) -> LinearPlan | None:
        """None also on processors where torch's kernels are faster."""
        if not outruns_torch():
            return None
        if inputs.numel() > self.compiled_few * self.in_features and not multiplies_many(self.scales.dtype):
            return None
        plan = self.plan_for(inputs)
        return None if plan is None else self.trusted(plan)

    def trusted(self, plan: LinearPlan) -> LinearPlan | None:
        """None where the weight `is_compiled` not: asked once for every plan and instruction set."""
        used = native.isa()
        if plan.trusted_on is not used:
            if not self.is_compiled():
                return None
            plan.trusted_on = used
        return plan

    @property
    def weight(self) -> Tensor:
        """[O, I] the whole weight, for those who read it: modules that multiply by it themselves, and scorers.

        It is written out anew every time: what somebody writes into it changes nothing.
        """
        return self.written_out(slice(None), self.scales.dtype)

    def extra_repr(self) -> str:
        """Sizes, as torch's own layers tell them."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"

    def _times(self, rows: Tensor) -> Tensor:
        outputs = rows.new_empty(len(rows), self.out_features)
        rows = rows if torch_multiplies(rows.dtype) else rows.float()
        for part in parts_of(self.out_features, self.in_features):
            weights = self.written_out(part, rows.dtype).mT
            followed = torch.is_grad_enabled() and (rows.requires_grad or weights.requires_grad)
            if followed or rows.dtype != outputs.dtype:
                outputs[:, part] = rows @ weights
            else:
                torch.mm(rows, weights, out=outputs[:, part])
        return outputs


class RoundedLinear(QuantizedLinear):
    """A layer of few bits that a weight may be rounded to, whatever its values."""

    @classmethod
    def of(cls, linear: nn.Linear) -> Self:
        """The nearest to a layer. Raises ModelError as `round_into`."""
        return cls.rounded(linear.weight.detach(), Room()).with_bias(linear.bias)

    @classmethod
    def rounded(cls, weight: Tensor, room: Room) -> Self:
        """The nearest to a weight [O, I] in the dtype that the model computes in, without a bias.

        Raises ModelError as `round_into`.
        """
        stored = cls.room_for(weight.shape, weight.dtype, room)
        cls.round_into(stored, weight, room)
        return cls(stored, None)

    @staticmethod
    @abstractmethod
    def round_into(stored: Sequence[Tensor], weight: Tensor, room: Room) -> None:
        """Writes the nearest to a weight [O, I]."""
