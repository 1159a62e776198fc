"""Limits of control groups, in file systems as containers see them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from winnow.models import available_memory, devices
from winnow.models.container_memory import container_memory


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def second(limit: object, used: int, cached: int = 0, at: str = "") -> dict[str, str]:
    """The files of a group, of the second version."""
    stat = f"anon 5\nfile 77\ninactive_file {cached}\n"
    return {
        f"sys/fs/cgroup/{at}memory.max": f"{limit}\n",
        f"sys/fs/cgroup/{at}memory.current": f"{used}\n",
        f"sys/fs/cgroup/{at}memory.stat": stat,
    }


def first(limit: int, used: int, cached: int, at: str = "") -> dict[str, str]:
    """The same of the first version."""
    return {
        f"sys/fs/cgroup/memory/{at}memory.limit_in_bytes": f"{limit}\n",
        f"sys/fs/cgroup/memory/{at}memory.usage_in_bytes": f"{used}\n",
        f"sys/fs/cgroup/memory/{at}memory.stat": f"cache 9\ntotal_inactive_file {cached}\n",
    }


OWN = "proc/self/cgroup"


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({OWN: "0::/\n"} | second(1000, 700, 200), 500),  # files of the page cache are given up first
        ({OWN: "0::/\n"} | second(1000, 1300), 0),
        ({OWN: "0::/\n"} | second("max", 700), None),
        ({OWN: "0::/a/b\n"} | second("max", 1, at="a/b/") | second(900, 100, at="a/"), 800),
        ({OWN: "0::/a/b\n"} | second(500, 100, at="a/b/") | second(450, 300, at="a/"), 150),
        ({OWN: "5:cpu,cpuacct:/x\n4:memory:/x\n0::/\n"} | first(1000, 400, 100, at="x/"), 700),
        ({OWN: "4:memory:/\n"} | first(9223372036854771712, 400, 100), None),
        ({OWN: "4:cpu:/\n"} | first(1000, 400, 100), None),
        ({OWN: "0::/a:b\n"} | second(1000, 400, at="a:b/"), 600),
        ({OWN: "0::/gone\n"}, None),
        ({}, None),
    ],
)
def test_what_a_container_leaves(files: dict[str, str], left: int | None, tmp_path: Path) -> None:
    assert container_memory(write(tmp_path, files)) == left


def test_the_least_of_machine_and_container_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    whole = available_memory(cpu)
    assert whole is not None
    monkeypatch.setattr(devices, "container_memory", lambda: 1000)
    assert available_memory(cpu) == 1000
    monkeypatch.setattr(devices, "container_memory", lambda: 1 << 60)
    assert available_memory(cpu) not in (None, 1000, 1 << 60)
