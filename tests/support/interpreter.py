"""Triton's interpreter without its slowest habits: nothing that kernels do changes but the time."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import triton
from triton.language import core
from triton.runtime import interpreter

WRITTEN_FOR = "3.9."
"""Releases whose types and tensors are made as here."""


def patch_once() -> None:
    """From now on the language is made the interpreter's own once for each launch; no sums are made and thrown away.

    Releases that do so in another way than the one that this was written for are left alone.
    """
    scope, patch = getattr(interpreter, "_LangPatchScope", None), getattr(interpreter, "_patch_lang", None)
    if scope is None or patch is None or hasattr(patch, "once"):
        return

    def once(function: Any) -> Any:
        seen = [each for each in function.__globals__.values() if each is interpreter.tl or each is core]
        patched = bool(seen) and not any(core.is_builtin(each.load) for each in seen)
        return scope() if patched else patch(function)

    once.once = True  # type: ignore[attr-defined]
    interpreter._patch_lang = once
    _leave_out_unused_checks()
    _look_dtypes_up_once()
    if triton.__version__.startswith(WRITTEN_FOR):
        _remember_shapes()


def _leave_out_unused_checks() -> None:
    """No integers are added and compared in 64 bits for assertions that are made in debugging only."""
    builder = interpreter.interpreter_builder
    options = getattr(builder, "options", None)
    if getattr(options, "sanitize_overflow", False) and not getattr(options, "debug", True):
        builder.options = dataclasses.replace(options, sanitize_overflow=False)


def _look_dtypes_up_once() -> None:
    """The table of NumPy's dtypes is not made anew for every operation."""
    convert = getattr(interpreter, "_get_np_dtype", None)
    if convert is None:
        return
    known: dict[str, np.dtype[Any]] = {}

    def looked_up(dtype: Any) -> np.dtype[Any]:
        name = "pointer" if dtype.scalar.is_ptr() else dtype.scalar.name
        if name not in known:
            known[name] = convert(dtype)
        return known[name]

    interpreter._get_np_dtype = looked_up


def _remember_shapes() -> None:
    """Shapes of types and of tensors are made once for every shape; operands of one shape are not compared by axes."""
    type_made, tensor_made = core.block_type.__init__, core.tensor.__init__
    semantic = interpreter.interpreter_semantic
    broadcast = semantic.broadcast_impl_value
    types: dict[tuple[int, ...], tuple[Any, int, str]] = {}
    tensors: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def make_type(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple(each.value if isinstance(each, core.constexpr) else each for each in shape)
        if sizes not in types:
            type_made(self, element_ty, shape)
            types[sizes] = self.shape, self.numel, str(self.shape)
        self.element_ty = element_ty
        self.shape, self.numel, written = types[sizes]
        self.name = f"<{written}, {element_ty}>"

    def make_tensor(self: Any, handle: Any, type: Any) -> None:
        sizes = tuple(type.shape.values) if type.is_block() else ()
        if sizes not in tensors:
            tensor_made(self, handle, type)
            tensors[sizes] = self.shape, self.numel
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = tensors[sizes]

    def broadcast_unless_alike(lhs: Any, rhs: Any) -> Any:
        if lhs.type.is_block() and rhs.type.is_block() and lhs.type.shape.values == rhs.type.shape.values:
            return lhs, rhs
        return broadcast(lhs, rhs)

    core.block_type.__init__, core.tensor.__init__ = make_type, make_tensor
    semantic.broadcast_impl_value = broadcast_unless_alike
