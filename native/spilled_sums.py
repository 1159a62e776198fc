"""Inner loops that keep in memory what they sum up, which takes a third of a kernel's time.

    python native/spilled_sums.py build/**/kernels.cpp.o    # or a library that was not stripped

Arrays of sums stay in registers only where every index is a constant before the compiler splits them up. A lambda that
is inlined later hides one, and GCC then writes each sum behind each product: `__attribute__((always_inline))` on it
helps. Needs objdump of binutils.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_FUNCTION = re.compile(r"[0-9a-f]+ <(.*)>:$")
_INSTRUCTION = re.compile(r"\s*([0-9a-f]+):\s+(.+)")
_JUMP = re.compile(r"j\w+\s+([0-9a-f]+)")
_PRODUCT = re.compile(r"vfn?m(add|sub)|vdpbf16ps|vpdp|vpmadd")
_SPILL = re.compile(r"vmov\w+\s+%[xyz]mm\d+,-?0x[0-9a-f]+\(%r[sb]p\)")
_FEWEST = 4
"""Products of a loop worth a look."""


class Loop(NamedTuple):
    """An innermost loop without calls."""

    function: str
    address: int
    instructions: int
    products: int
    spills: int
    """Vectors written to the stack."""

    @property
    def keeps_sums_in_memory(self) -> bool:
        """True where as many vectors are written as half of the products, or more."""
        return self.products >= _FEWEST and 2 * self.spills >= self.products


def loops_of(listing: str) -> Iterator[Loop]:
    """The loops in what `objdump --disassemble --demangle --no-show-raw-insn` prints."""
    name, lines = "", list[tuple[int, str]]()
    for line in listing.splitlines():
        if found := _FUNCTION.match(line):
            yield from _loops(name, lines)
            name, lines = found[1], []
        elif found := _INSTRUCTION.match(line):
            lines.append((int(found[1], 16), found[2]))
    yield from _loops(name, lines)


def _loops(name: str, lines: list[tuple[int, str]]) -> Iterator[Loop]:
    backwards = [
        (int(jump[1], 16), address)
        for address, text in lines
        if (jump := _JUMP.match(text)) and lines[0][0] <= int(jump[1], 16) < address
    ]
    for first, last in backwards:
        if any(first <= start and end <= last and (start, end) != (first, last) for start, end in backwards):
            continue
        body = [text for address, text in lines if first <= address <= last]
        if any(text.startswith("call") for text in body):
            continue
        products, spills = (sum(bool(each.match(text)) for text in body) for each in (_PRODUCT, _SPILL))
        yield Loop(name, first, len(body), products, spills)


def disassembled(file: Path) -> str:
    """The listing of an object or a library. Ends the program where there is none."""
    command = ["objdump", "--disassemble", "--demangle", "--no-show-raw-insn", str(file)]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except FileNotFoundError:
        sys.exit("objdump is missing: install binutils.")
    except subprocess.CalledProcessError as problem:
        sys.exit(problem.stderr.strip() or f"{file}: objdump finds no code.")


def main(files: list[str]) -> int:
    """Prints loops that keep sums in memory; 1 where there are any."""
    if not files:
        print(__doc__)
        return 2
    count = 0
    for file in files:
        for loop in filter(lambda each: each.keeps_sums_in_memory, loops_of(disassembled(Path(file)))):
            count += 1
            print(f"{file}: {loop.address:x}: {loop.spills} spills, {loop.products} products, {loop.function}")
    print(f"{count or 'No'} loop{'s' * (count != 1)} with sums in memory.")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
