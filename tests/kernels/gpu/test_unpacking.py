"""PTX that makes numbers of integers in bytes, run by a few lines of Python over every byte."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from winnow.kernels.gpu.unpacking import instructions

PLACES = [(bits, place) for bits in (8, 4, 2, 1) for place in range(8 // bits)]


class Machine:
    """Registers of 32 bits, and the instructions that are met."""

    def __init__(self, dtype: torch.dtype, data: int) -> None:
        self.dtype = dtype
        self.registers = {"$2": data}

    def run(self, ptx: str) -> list[int]:
        """The two results."""
        for line in ptx.strip("{} ").split(";"):
            words = re.split(r"[ ,]+", line.strip())
            if words[0] not in ("", ".reg"):
                name, into, *given = words
                self.registers[into] = self._done(name, [self._value(each) for each in given])
        return [self.registers["$0"], self.registers["$1"]]

    def _value(self, given: str) -> int:
        return self.registers[given] if given in self.registers else int(given, 0)

    def _done(self, name: str, given: list[int]) -> int:
        if name == "mov.b32":
            return given[0]
        if name == "shr.b32":
            return given[0] >> given[1]
        if name == "and.b32":
            return given[0] & given[1]
        if name == "lop3.b32":
            return self._looked_up(*given)
        if name == "prmt.b32":
            first, second, places = given
            both = first | second << 32
            return sum((both >> 8 * (places >> 4 * n & 15) & 255) << 8 * n for n in range(4))
        assert re.fullmatch(r"fma\.rn\.(bf16|f16)x2", name), name
        x, y, z = (self.numbers(each) for each in given)
        halves = (x * y + z).to(self.dtype).view(torch.int16).numpy().view(np.uint16)
        return int(halves[0]) | int(halves[1]) << 16

    @staticmethod
    def _looked_up(a: int, b: int, c: int, table: int) -> int:
        bits = zip(*(f"{each:032b}" for each in (a, b, c)), strict=True)
        return int("".join(str(table >> int("".join(three), 2) & 1) for three in bits), 2)

    def numbers(self, register: int) -> torch.Tensor:
        """fp32 [2]: the pair in a register; an fma of it is exact in fp32 but for the rounding at its end."""
        halves = np.array([register & 0xFFFF, register >> 16], dtype=np.uint16).view(np.int16)
        return torch.from_numpy(halves).view(self.dtype).float()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("signed", [False, True], ids=["unsigned", "signed"])
@pytest.mark.parametrize(("bits", "place"), PLACES)
def test_every_byte_becomes_its_integers(bits: int, place: int, signed: bool, dtype: torch.dtype) -> None:
    ptx = instructions(bits, place, signed, dtype == torch.bfloat16)
    for first in range(0, 256, 4):
        held = range(first, first + 4)
        machine = Machine(dtype, sum(byte << 8 * n for n, byte in enumerate(held)))
        found = torch.cat([machine.numbers(each) for each in machine.run(ptx)]).tolist()
        assert found == [integer(byte, bits, place, signed) for byte in held]


def integer(byte: int, bits: int, place: int, signed: bool) -> int:
    """The integer at a place in a byte."""
    value = byte >> bits * place & ((1 << bits) - 1)
    return value - (1 << bits) if signed and value >> (bits - 1) else value


def test_the_machine_adds_as_asked() -> None:
    """Grounds of the test: two's complement and the table of lop3."""
    assert [integer(byte, 4, 1, True) for byte in (0x70, 0x80, 0xF0)] == [7, -8, -1]
    for a, b, c in product((0, 0xFFFFFFFF), repeat=3):
        assert Machine._looked_up(a, b, c, 0x6A) == (a & b) ^ c
