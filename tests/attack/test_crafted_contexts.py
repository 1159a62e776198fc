"""Context files with crafted facts and tensors and right checksums.

Such a file is refused, at the latest before its first token, or decodes. The process it is opened in survives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support.attack import seeds
from support.crafted_contexts import NAMES
from support.worker import Worker


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """The process that opens the files."""
    found = Worker()
    yield found
    found.close()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", seeds(3, 70))
def test_crafted_context(worker: Worker, name: str, seed: int, record_property: Callable[[str, object], None]) -> None:
    outcome = worker.run("support.crafted_contexts:attempt_crafted", name=name, seed=seed)
    record_property("outcome", outcome)
    assert outcome in ("refused", "decoded")
