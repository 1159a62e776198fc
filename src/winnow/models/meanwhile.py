"""Functions of libraries that others take the place of for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def meanwhile(owner: Any, name: str, other: Any) -> Iterator[None]:
    """Puts something in place of what an owner has under a name, and puts that back afterwards."""
    plain = getattr(owner, name)
    setattr(owner, name, other)
    try:
        yield
    finally:
        setattr(owner, name, plain)
