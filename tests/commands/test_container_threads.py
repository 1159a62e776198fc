"""Quotas of control groups, in file systems as containers see them."""

from __future__ import annotations

from pathlib import Path

import pytest

from winnow.commands import container_threads as threads
from winnow.commands.container_threads import container_threads

OWN = "proc/self/cgroup"


def second(text: str, at: str = "") -> dict[str, str]:
    """The file of a group, of the second version."""
    return {f"sys/fs/cgroup/{at}cpu.max": f"{text}\n"}


def first(quota: int, period: int, at: str = "") -> dict[str, str]:
    """Those of the first version."""
    folder = f"sys/fs/cgroup/cpu/{at}cpu.cfs_"
    return {f"{folder}quota_us": f"{quota}\n", f"{folder}period_us": f"{period}\n"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({OWN: "0::/\n"} | second("200000 100000"), 2),
        ({OWN: "0::/\n"} | second("150000 100000"), 2),
        ({OWN: "0::/\n"} | second("10000 100000"), 1),
        ({OWN: "0::/\n"} | second("max 100000"), None),
        ({OWN: "0::/\n"} | second("800000 100000"), None),  # as many as there are
        ({OWN: "0::/\n"} | second("no number"), None),
        ({OWN: "0::/\n"} | second("100000"), None),
        ({OWN: "0::/\n"} | second("100000 0"), None),
        ({OWN: "0::/a/b\n"} | second("max 100000", at="a/b/") | second("300000 100000", at="a/"), 3),
        ({OWN: "0::/a/b\n"} | second("100000 100000", at="a/b/") | second("300000 100000", at="a/"), 1),
        ({OWN: "5:cpu,cpuacct:/x\n4:memory:/x\n0::/\n"} | first(50000, 25000, at="x/"), 2),
        ({OWN: "5:cpu,cpuacct:/x\n"} | first(400000, 100000), 4),  # of a container that sees its own folder alone
        ({OWN: "5:cpu,cpuacct:/\n"} | first(-1, 100000), None),
        ({OWN: "4:memory:/\n"} | first(100000, 100000), None),
        ({OWN: "0::/gone\n"}, None),
        ({OWN: "no group\n\n0:\n0::/\n"} | second("200000 100000"), 2),
        ({OWN: "0::/../other\n"} | second("200000 100000"), 2),
        ({}, None),
    ],
)
def test_threads_for_which_a_container_has_time(
    files: dict[str, str], expected: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "_processors", lambda: 8)
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert container_threads(tmp_path) == expected
