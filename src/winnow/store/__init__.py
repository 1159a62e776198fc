"""How a kept slot is written."""

from winnow.store.base import Cost, LayerShape, Store
from winnow.store.dense import Dense

__all__ = ["Cost", "Dense", "LayerShape", "Store"]
