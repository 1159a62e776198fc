"""Norms of models by the compiled kernels: which are replaced, and by what."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from winnow.kernels import native
from winnow.kernels.norm import NormForm, NormPlan, NormWeight
from winnow.models.planned import Planned, place_of
from winnow.models.replacing import StandIn, may_be_replaced, replace_alike

_NAME = "RMSNorm"
_EPSILONS = ("variance_epsilon", "eps")
"""Names of the number that is added to the mean of squares."""
FORMS = (NormForm(), NormForm(rounds_first=False), NormForm(rounds_first=False, offset=1.0))
"""Those of Llama and most others; of OLMo 2, GPT-OSS, Gemma 4 and Nemotron-H; of the other Gemmas and Qwen3-Next."""
_ALIKE = 0.99
"""The share of numbers that are the same to the bit where a norm rounds as the kernels do, in another order of sums."""


class CompiledRMSNorm(Planned[NormPlan], StandIn):
    """A norm by Winnow's kernel where nothing follows it, for gradients or a compiler; else by its own forward."""

    def __init__(self, norm: nn.Module, form: NormForm = FORMS[0]) -> None:
        """norm: one that `fits`; form: see `form_of`."""
        super().__init__(norm)
        self._form = form
        self._epsilon = next(name for name in _EPSILONS if hasattr(norm, name))

    @staticmethod
    def fits(norm: nn.Module) -> bool:
        """True for an RMS norm that may be w · x / √(mean(x²) + ε) in some form: by its parts alone."""
        if _NAME not in type(norm).__name__ or not may_be_replaced(norm):
            return False
        if [name for name, _ in norm.named_parameters()] != ["weight"] or [*norm.buffers(), *norm.children()]:
            return False
        epsilons = [getattr(norm, name) for name in _EPSILONS if hasattr(norm, name)]
        if len(epsilons) != 1 or not isinstance(epsilons[0], float):
            return False
        weight = norm.get_parameter("weight")
        return type(weight) is nn.Parameter and NormWeight(weight, epsilons[0]).fits()

    def compiled_weight(self) -> NormWeight:
        return NormWeight(self.parameter("weight"), self.__dict__[self._epsilon], self._form)

    def place(self) -> tuple[object, ...]:
        return *place_of(self._parameters["weight"]), self.__dict__[self._epsilon], self._form

    def forward(self, hidden_states: Tensor) -> Tensor:
        """hidden_states [..., W] -> [..., W]"""
        plan = self.plan_for(hidden_states)
        return self.as_before(hidden_states) if plan is None else plan.run(hidden_states)


def normalize_in_one_pass(model: nn.Module) -> None:
    """Has the RMS norms of a model on the CPU be done by Winnow's kernel, in place.

    torch takes eight operators for each, which cost more than they compute where a token is decoded. Parameters and
    their names stay, and so does what norms compute, the last bit aside. Norms that compute anything else are left as
    they are: one of each kind is tried before it is replaced.
    """
    if native.library() is None:
        return

    def by_kernel(norm: nn.Module) -> Callable[[nn.Module], CompiledRMSNorm] | None:
        form = form_of(norm)
        return None if form is None else partial(CompiledRMSNorm, form=form)

    replace_alike(model, _kind_of, by_kernel)


def _kind_of(norm: nn.Module) -> tuple[object, ...] | None:
    return settings_of(norm) if CompiledRMSNorm.fits(norm) else None


def settings_of(norm: nn.Module) -> tuple[object, ...]:
    """The same for norms that differ in the numbers of their weight only."""
    settings = sorted((name, repr(value)) for name, value in vars(norm).items() if not name.startswith("_"))
    weight = norm.get_parameter("weight")
    return type(norm), weight.shape, weight.dtype, *settings


def form_of(norm: nn.Module) -> NormForm | None:
    """The form in which the kernels give what a norm that `fits` gives; None if in none."""
    return next((form for form in FORMS if computes_the_same(norm, form)), None)


@torch.no_grad()
def computes_the_same(norm: nn.Module, form: NormForm) -> bool:
    """True if the kernels give what a norm that `fits` gives, for rows of small, usual and large numbers.

    It is tried with a random weight: one of ones would not tell w from its square.
    """
    generator = torch.Generator().manual_seed(0)
    weight = norm.get_parameter("weight")
    width, dtype = len(weight), weight.dtype
    twin = copy.copy(norm)
    weights = torch.randn(width, generator=generator, dtype=torch.float32, device="cpu").to(dtype)
    twin._parameters = {"weight": nn.Parameter(weights)}
    sizes = torch.tensor([1e-3, 1.0, 100.0], dtype=torch.float32, device="cpu")[:, None, None]
    numbers = (sizes * torch.randn(3, 4, width, generator=generator, dtype=torch.float32, device="cpu")).to(dtype)
    expected, found = (
        type(norm).forward(twin, numbers),
        CompiledRMSNorm(twin, form).compiled_weight().plan().run(numbers),
    )
    if expected.dtype != found.dtype or expected.shape != found.shape:
        return False
    close = torch.allclose(found.float(), expected.float(), rtol=4 * torch.finfo(dtype).eps, atol=1e-30)
    same = (found == expected).double().mean()
    return close and (dtype == torch.float32 or float(same) > _ALIKE)
