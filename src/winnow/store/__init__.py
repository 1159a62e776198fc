"""Stores: forms in which kept slots are written, chosen by channels and bits."""

from winnow.kernels.formats.entries import Entries
from winnow.store.base import Cost, Earlier, LayerShape, Store
from winnow.store.channels import AllChannels, ChannelChoice, Channels, Width
from winnow.store.dense import Dense
from winnow.store.packed import Packed
from winnow.store.precision import AsIs, Bits, Kivi, MixedBits, Precision
from winnow.store.spark import Spark, SparkG, SparkP
from winnow.store.think import Think

__all__ = [
    "AllChannels",
    "AsIs",
    "Bits",
    "ChannelChoice",
    "Channels",
    "Cost",
    "Dense",
    "Earlier",
    "Entries",
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
    "Width",
]
