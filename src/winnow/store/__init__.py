"""How a kept slot is written."""

from winnow.store.base import Store
from winnow.store.dense import Dense

__all__ = ["Dense", "Store"]
