"""Context files with damaged bytes, and headers that no writer writes.

A damaged file is refused where its checksums are verified; where they are not, it is refused or decodes. A wrong header
is refused either way, within memory that has no room for what it promises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support.attack import seeds
from support.crafted_contexts import NAMES
from support.damaged_contexts import HEADERS
from support.turns import each_value
from support.worker import Worker

ROOM = 1 << 30


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """The process that opens the files."""
    found = Worker(ROOM)
    yield found
    found.close()


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", seeds(1, 20))
def test_damaged_context(
    worker: Worker, name: str, seed: int, verify: bool, record_property: Callable[[str, object], None]
) -> None:
    outcome = worker.run("support.damaged_contexts:attempt_damaged", name=name, seed=seed, verify=verify)
    record_property("outcome", outcome)
    assert outcome == "refused" or (outcome == "decoded" and not verify)


@pytest.mark.parametrize(("verify", "case"), each_value([True, False], list(HEADERS)))
def test_header(worker: Worker, case: str, verify: bool, record_property: Callable[[str, object], None]) -> None:
    outcome = worker.run("support.damaged_contexts:attempt_header", case=case, verify=verify)
    record_property("outcome", outcome)
    assert outcome == "refused"
