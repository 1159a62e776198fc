"""Integers in bytes as numbers of 16 bits, four bytes at a time, in the few instructions that a GPU has for that.

An integer u in the low bits of 2^7 in bf16, or of 2^10 in fp16, makes the number 2^7 + u, or 2^10 + u: one subtraction
leaves u. Conversions that the compiler makes go byte by byte and take several times as many instructions.
"""

from __future__ import annotations

import triton
import triton.language as tl

from winnow.kernels.gpu.constants import constant_function


@constant_function
def instructions(bits: int, place: int, signed: bool, bf16: bool) -> str:
    """PTX that makes of the integers at a place in four bytes ($2) two pairs of numbers in bf16 or fp16 ($0, $1).

    bits: of an integer, 8, 4, 2 or 1; place: of the integer in its byte; signed: in two's complement.
    """
    # All of it in one function: Triton keeps compiled kernels by the source of what they call, no deeper than this.
    kind, mantissa, base, one = ("bf16x2", 7, 0x43, 0x3F80) if bf16 else ("f16x2", 10, 0x64, 0x3C00)

    def pair(number: int) -> str:
        """A pair of a whole number below 0, or of 1."""
        exponent = max(abs(number).bit_length() - 1, 0)
        held = (0x8000 if number < 0 else 0) + one + (exponent << mantissa)
        held += (abs(number) << mantissa >> exponent) - (1 << mantissa)
        return f"{held << 16 | held:#x}"

    def every(byte: int) -> str:
        return f"{byte * 0x01010101:#x}"

    def below_base(register: str) -> list[str]:
        """The four bytes of a register, in two pairs."""
        return [f"prmt.b32 {register}{n}, {register}, {every(base)}, {(0x4140, 0x4342)[n]:#x}" for n in range(2)]

    lines = [".reg .b32 t, s, t0, t1, s0, s1, one, off, sign", f"shr.b32 t, $2, {bits * place}"]
    lines += [f"mov.b32 one, {pair(1)}"]
    if bits > mantissa:
        # Seven bits as ever; the eighth is 128 or 256, to be taken off or added.
        lines += [f"and.b32 s, t, {every(0x80)}", f"and.b32 t, t, {every(0x7F)}", *below_base("t"), *below_base("s")]
        lines += [f"mov.b32 off, {pair(-256)}", f"mov.b32 sign, {pair(-1 if signed else 1)}"]
        if not signed:
            lines += [f"fma.rn.{kind} t{n}, t{n}, one, off" for n in range(2)]
        lines += [f"fma.rn.{kind} ${n}, s{n}, sign, t{n}" for n in range(2)]
    else:
        half = 1 << (bits - 1) if signed else 0
        # (t & mask) ^ half: two's complement counts from its lowest integer then.
        lines += [f"lop3.b32 t, t, {every((1 << bits) - 1)}, {every(half)}, 0x6a", *below_base("t")]
        lines += [f"mov.b32 off, {pair(-(1 << mantissa) - half)}"]
        lines += [f"fma.rn.{kind} ${n}, t{n}, one, off" for n in range(2)]
    return "{ " + "; ".join(lines) + "; }"


@triton.jit
def unpacked(
    data, BITS: tl.constexpr, PLACE: tl.constexpr, SIGNED: tl.constexpr, DTYPE: tl.constexpr, MOVED: tl.constexpr
):  # fmt: skip
    """The integers at a place in bytes, as numbers of 16 bits.

    MOVED: the compiler may put the bytes in place for what follows, and have them unpacked there. Otherwise they are
    unpacked where they were loaded, and the numbers put in place.
    """
    ptx: tl.constexpr = instructions(BITS, PLACE, SIGNED, tl.bfloat16 == DTYPE)
    # What is not pure stays where it is.
    if tl.bfloat16 == DTYPE:
        numbers = tl.inline_asm_elementwise(ptx, "=r,=r,r", [data], dtype=tl.bfloat16, is_pure=MOVED, pack=4)
    else:
        numbers = tl.inline_asm_elementwise(ptx, "=r,=r,r", [data], dtype=tl.float16, is_pure=MOVED, pack=4)
    return numbers
