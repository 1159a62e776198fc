"""Decode attention straight from the stored form: one interface, native C++ and plain torch behind it."""

from winnow.kernels.interface import AttentionSpec, DecodePlan, PrefixBlock, TailSegments, attend, backend

__all__ = ["AttentionSpec", "DecodePlan", "PrefixBlock", "TailSegments", "attend", "backend"]
