"""Tensors with a note that goes on to everything that is computed from them.

Models that cache latents make keys of what a cache returns, so that a note on that alone would be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

NOTE = "_winnow_handle"
"""The attribute of a tensor that a note is."""


class Note(Protocol):
    """Said of a tensor, by whoever gave it away."""

    is_unseen: bool
    """True where nobody looks at what is computed from it."""


class Carrier(Tensor):
    """A tensor whose note goes on to everything that is computed from it.

    What nobody looks at is not computed: products and copies leave their memory as it came.
    """

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """As a plain tensor's, then the note of the first carrier among the arguments."""
        if function is linear and _is_unseen(args[0]):
            return _memory_for(args[0], args[1].shape[0])
        if function is Tensor.copy_ and _is_unseen(args[0]):
            return args[0]
        result = super().__torch_function__(function, types, args, kwargs)
        _pass_on(result, _first_note(args))
        return result

    def through(self, layer: Callable[[Tensor], Tensor], outputs: int) -> Tensor:
        """[..., O] what a linear layer of so many outputs makes of it, with the note."""
        if _is_unseen(self):
            return _memory_for(self, outputs)
        return carried_on(layer(plain(self)), note_of(self))


def carried_on(tensor: Tensor, note: Note | None) -> Tensor:
    """The same memory as a tensor that passes the note on."""
    carrier = tensor.as_subclass(Carrier)
    setattr(carrier, NOTE, note)
    return carrier


def plain(tensor: Tensor) -> Tensor:
    """The tensor without anything that it passes on."""
    return tensor.as_subclass(Tensor) if isinstance(tensor, Carrier) else tensor


def note_of(tensor: Tensor) -> Any:
    """The note of a tensor, or None."""
    return getattr(tensor, NOTE, None)


def _memory_for(inputs: Tensor, outputs: int) -> Tensor:
    return carried_on(plain(inputs).new_empty(*inputs.shape[:-1], outputs), note_of(inputs))


def _is_unseen(tensor: Any) -> bool:
    note = note_of(tensor) if isinstance(tensor, Carrier) else None
    return note is not None and note.is_unseen and not torch.compiler.is_compiling()


def _first_note(values: Iterable[Any]) -> Note | None:
    for value in values:
        if isinstance(value, Carrier):
            found: Note | None = note_of(value)
        else:
            found = _first_note(value) if isinstance(value, list | tuple) else None
        if found is not None:
            return found
    return None


def _pass_on(result: Any, note: Note | None) -> None:
    for each in result if isinstance(result, list | tuple) else (result,):
        if isinstance(each, Carrier) and note is not None:
            setattr(each, NOTE, note)
