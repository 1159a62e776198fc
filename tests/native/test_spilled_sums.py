"""Loops that keep sums in memory are found in what a disassembler prints."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "native" / "spilled_sums.py"
LISTING = """
kernels.o:     file format elf64-x86-64


0000000000000010 <void winnow::score<4>(float const*)>:
      10:	xor    %eax,%eax
      20:	vmovdqu64 (%rsi),%zmm9
      26:	vdpbf16ps %zmm9,%zmm8,%zmm1
      2c:	vmovaps %zmm1,0x40(%rsp)
      34:	vdpbf16ps %zmm9,%zmm7,%zmm2
      3a:	vfmadd231ps %zmm9,%zmm7,%zmm3
      40:	vfmadd231ps %zmm9,%zmm7,%zmm4
      46:	{0}
      4e:	cmp    %rax,%rcx
      51:	jg     20 <void winnow::score<4>(float const*)+0x10>
      57:	vmovaps %zmm1,(%rdi)
      5d:	jmp    10 <void winnow::score<4>(float const*)>
      60:	ret
"""


@pytest.fixture
def script() -> ModuleType:
    """The script, which is no module of the package."""
    spec = importlib.util.spec_from_file_location("spilled_sums", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["spilled_sums"] = module
    spec.loader.exec_module(module)
    return module


def test_an_innermost_loop_is_counted(script: ModuleType) -> None:
    (loop,) = script.loops_of(LISTING.format("vmovaps %zmm2,-0x80(%rbp)"))
    assert loop == ("void winnow::score<4>(float const*)", 0x20, 9, 4, 2)
    assert loop.keeps_sums_in_memory


def test_what_is_written_elsewhere_is_no_spill(script: ModuleType) -> None:
    (loop,) = script.loops_of(LISTING.format("vmovaps %zmm2,0x80(%rdi)"))
    assert loop.spills == 1
    assert not loop.keeps_sums_in_memory


def test_a_loop_that_calls_is_left_out(script: ModuleType) -> None:
    assert not list(script.loops_of(LISTING.format("call   76d0 <exp>")))


def test_without_files_it_says_how_it_is_used(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main([]) == 2
    assert "spilled_sums.py" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("objdump") is None, reason="no binutils")
def test_what_cannot_be_read_is_told(script: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"missing\.o"):
        script.main([str(tmp_path / "missing.o")])
