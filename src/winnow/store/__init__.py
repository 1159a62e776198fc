"""Stores: forms in which kept slots are written, chosen by channels and bits."""

from winnow.store.base import Cost, Earlier, LayerShape, Store
from winnow.store.channels import AllChannels, Channels
from winnow.store.dense import Dense
from winnow.store.packed import Packed
from winnow.store.precision import AsIs, Bits, Kivi, MixedBits, Precision
from winnow.store.spark import Spark, SparkG, SparkP
from winnow.store.think import Think

__all__ = [
    "AllChannels",
    "AsIs",
    "Bits",
    "Channels",
    "Cost",
    "Dense",
    "Earlier",
    "Kivi",
    "LayerShape",
    "MixedBits",
    "Packed",
    "Precision",
    "Spark",
    "SparkG",
    "SparkP",
    "Store",
    "Think",
]
