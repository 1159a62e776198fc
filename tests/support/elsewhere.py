"""Tensors that say they lie on a GPU and really lie here: what device a program's tensors are on, without a device.

Inside `gpu_stand_in` everything that is asked for on that device is an `Elsewhere`. It computes on the CPU, but refuses
what a GPU refuses, two tensors of different devices, and every time the program would wait for it or copy is noted.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from support.nested import leaves, mapped

GPU = torch.device("meta")
"""Stand-in for a GPU: the only other device that every torch knows. Nothing here is really without numbers."""
_WAITS = (
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_dim",
    "equal",
    "bincount",
    "is_nonzero",
    "_linalg_check_errors",
)
"""Operators whose result, or the size of it, the host has to know."""
_MIXING = ("_to_copy", "copy_", "index", "index_put_", "index_put", "_index_put_impl_")
"""Operators that take tensors of two devices: copies, and indices from the host (a copy each)."""


class Elsewhere(torch.Tensor):
    """A tensor on another device, by its own account."""

    here: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, here: Tensor) -> Elsewhere:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined, no-any-return]
            cls, here.shape, strides=here.stride(), storage_offset=here.storage_offset(), dtype=here.dtype, device=GPU
        )

    def __init__(self, here: Tensor) -> None:
        self.here = here.detach()

    def __repr__(self) -> str:
        return f"Elsewhere({self.here!r})"

    def data_ptr(self) -> int:
        """Address at which the numbers really lie, for tables that kernels read."""
        return self.here.data_ptr()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Work of an operator, done here."""
        kwargs = dict(kwargs or {})
        kwargs.pop("pin_memory", None)
        given = [each for each in leaves((args, kwargs)) if isinstance(each, Tensor)]
        name = func._schema.name.removeprefix("aten::")
        strangers = [each for each in given if not isinstance(each, Elsewhere) and each.dim()]
        _note(name, strangers, args, kwargs)
        wanted = kwargs.get("device")
        if wanted is not None:
            kwargs["device"] = torch.device("cpu")
        owners = {id(each.here): each for each in given if isinstance(each, Elsewhere)}
        result = done_here(func, mapped(_here, args), mapped(_here, kwargs))
        if name == "_to_copy" and wanted is not None and torch.device(wanted).type == "cpu":
            return result
        return mapped(lambda each: _there_again(each, owners), result)


class _StandIn(TorchFunctionMode):
    """Sends what is asked for on a GPU to `Elsewhere`, before torch looks for one."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        target = _target(func, args, kwargs)
        if func is torch.where and isinstance(args[0], Elsewhere):
            return _chosen(*args)
        if func is scaled_dot_product_attention and isinstance(args[0], Elsewhere):
            return _attended(*args, **kwargs)
        if func is Tensor.tolist and isinstance(args[0], Elsewhere):
            _write("tolist")
            return args[0].here.tolist()
        if func in (Tensor.to, Tensor.cpu, Tensor.cuda) and isinstance(args[0], Tensor):
            return _moved(func, args, kwargs, target)
        if target is None or target.type != GPU.type:
            return func(*args, **kwargs)
        if any(isinstance(each, Elsewhere) for each in leaves(args)):
            kwargs.pop("device")  # new_zeros and their like: of the tensor's own device
            return func(*args, **kwargs)
        if func in (torch.tensor, torch.as_tensor):
            _write("upload")
        return there(func(*args, **kwargs | {"device": "cpu"}))


def check_launch(args: Any) -> None:
    """Raises AssertionError where a kernel of the GPU is given tensors of the CPU."""
    strangers = [each for each in args if isinstance(each, Tensor) and not isinstance(each, Elsewhere)]
    assert not strangers, "a kernel of the GPU is given tensors of the CPU"


@contextmanager
def triton_stand_in() -> Iterator[None]:
    """Keys and values of the GPU that stands in are packed by Triton's interpreter, which finds them here."""
    from triton.runtime.interpreter import InterpretedFunction

    from support.interpreter import patch_once
    from winnow.kernels.gpu import support

    patch_once()
    run = InterpretedFunction.run

    def run_here(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        check_launch(args)
        return run(kernel, *map(_here, args), **kwargs)

    with (
        mock.patch.object(InterpretedFunction, "run", run_here),
        mock.patch.object(support, "packs", lambda *sides: all(side.device == GPU for side in sides)),
    ):
        yield


def done_here(operator: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The result of an operator, on the CPU; it may be one of those that only a GPU has for whole numbers."""
    if operator._schema.name == "aten::histc" and not args[0].is_floating_point():
        return operator(args[0].float(), *args[1:], **kwargs).to(args[0].dtype)
    return operator(*args, **kwargs)


_NOTES: list[tuple[str, str]] = []


def there(tensor: Tensor) -> Elsewhere:
    """The same numbers, on the GPU."""
    return tensor if isinstance(tensor, Elsewhere) else Elsewhere(tensor)


def moved(module: Any) -> Any:
    """A named tuple with its tensors on the GPU."""
    return type(module)(*(there(each) if isinstance(each, Tensor) else each for each in module))


def moved_model(model: nn.Module) -> Any:
    """The model itself, its weights and buffers on the GPU."""
    for part in model.modules():
        for name, weight in part._parameters.items():
            if weight is not None:
                part._parameters[name] = nn.Parameter(there(weight.detach()), requires_grad=False)
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = there(buffer)
    return model


@contextmanager
def gpu_stand_in() -> Iterator[list[tuple[str, str]]]:
    """Yields the notes: (what, where) of every wait ("item", "tolist", "nonzero", …), "download" and "upload"."""
    _NOTES.clear()
    with _StandIn():
        yield _NOTES


def counted(notes: list[tuple[str, str]]) -> Counter[str]:
    """The number of notes of each sort."""
    return Counter(what for what, _ in notes)


def _here(value: Any) -> Any:
    return value.here if isinstance(value, Elsewhere) else value


def _there_again(result: Any, owners: dict[int, Elsewhere]) -> Any:
    """The tensor that was given, where an operator returns it; else a new one there."""
    if not isinstance(result, Tensor):
        return result
    return owners[id(result)] if id(result) in owners else there(result)


def _note(name: str, strangers: list[Tensor], args: Any, kwargs: dict[str, Any]) -> None:
    if strangers and name not in _MIXING:
        shapes = [tuple(each.shape) for each in strangers]
        raise RuntimeError(f"{name}: tensors of the CPU {shapes} meet others of the GPU")
    if strangers:
        _write("upload")
    if name in _WAITS or (name == "repeat_interleave" and kwargs.get("output_size") is None):
        _write({"_local_scalar_dense": "item"}.get(name, name))
    if name in ("index", "index_put_", "_index_put_impl_"):
        masks = [each for each in args[1] if each is not None and each.dtype == torch.bool]
        for _ in masks:
            _write("mask")


def _write(what: str) -> None:
    frame = sys._getframe()  # not `extract_stack`, which reads the line of every frame
    while frame is not None and "/winnow/" not in frame.f_code.co_filename:
        frame = frame.f_back  # type: ignore[assignment]
    place = "test" if frame is None else f"{frame.f_code.co_filename.split('/winnow/')[-1]}:{frame.f_code.co_name}"
    _NOTES.append((what, place))


def _chosen(condition: Elsewhere, *choices: Any) -> Any:
    """torch.where; its own form for numbers asks for a device that it knows."""
    result = torch.ops.aten.where(condition, *choices) if all(isinstance(c, Tensor) for c in choices) else None
    return there(torch.where(condition.here, *map(_here, choices))) if result is None else result


def _attended(*given: Any, **named: Any) -> Any:
    """torch's attention, whose own operators would make masks on the device that is not there."""
    strangers = [each for each in (*given, *named.values()) if isinstance(each, Tensor)]
    _note("scaled_dot_product_attention", [each for each in strangers if not isinstance(each, Elsewhere)], given, named)
    here = {name: _here(each) for name, each in named.items()}
    return there(scaled_dot_product_attention(*map(_here, given), **here))


def _target(func: Any, args: Any, kwargs: dict[str, Any]) -> torch.device | None:
    device = kwargs.get("device")
    if func is Tensor.cpu:
        return torch.device("cpu")
    if func is Tensor.cuda:
        return GPU
    if func is Tensor.to:
        for each in [*args[1:], device, kwargs.get("other")]:
            if isinstance(each, Tensor):
                return each.device
            if isinstance(each, torch.device):
                return each
            if isinstance(each, str):
                return torch.device(each)
    return None if device is None else torch.device(device)


def _moved(func: Any, args: Any, kwargs: dict[str, Any], target: torch.device | None) -> Any:
    """Tensor.to and its like."""
    tensor = args[0]
    if target is None or target.type == tensor.device.type:
        kwargs.pop("device", None)
        rest = [each for each in args[1:] if not isinstance(each, (torch.device, str))]
        rest = [each.dtype if isinstance(each, Tensor) else each for each in rest]
        return tensor.to(*rest, **kwargs) if rest or kwargs else tensor
    _write("upload" if target.type == GPU.type else "download")
    dtypes = [each for each in [*args[1:], kwargs.get("dtype")] if isinstance(each, torch.dtype)]
    dtypes += [each.dtype for each in args[1:] if isinstance(each, Tensor)]
    copy = _here(tensor).clone().to(dtypes[0] if dtypes else tensor.dtype)
    return there(copy) if target.type == GPU.type else copy
