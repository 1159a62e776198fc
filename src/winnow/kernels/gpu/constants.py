"""Functions of constants that kernels call while they are compiled, under whatever name this Triton has them."""

from __future__ import annotations

import triton
import triton.language as tl

constant_function = triton.constexpr_function if hasattr(triton, "constexpr_function") else tl.constexpr_function
"""Decorator; 3.4 has it in its language."""
