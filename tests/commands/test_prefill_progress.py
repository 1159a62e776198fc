"""The bar of a prefill."""

from __future__ import annotations

import pytest

import winnow
from support.asked import encoded
from winnow.commands import prefill_progress
from winnow.commands.pace import Pace
from winnow.commands.prefill_progress import reading
from winnow.commands.progress import Bar
from winnow.evaluate.decoding import prefill
from winnow.models import load_model

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model(source):
    return load_model(source, "cpu", "float32")


def test_layers_and_chunks_are_its_steps(model, source, monkeypatch):
    ids, seen, seconds = encoded(source), [], [0.0]

    class Watched(Bar):
        def __init__(self, text, pace):
            super().__init__(text, pace)
            self.changed = lambda: seen.append(self.pace.told())

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    def clock():
        seconds[0] += 1
        return seconds[0]

    monkeypatch.setattr(
        prefill_progress, "progress_bar", lambda text, total, unit: Watched(text, Pace(clock, total, unit))
    )
    cache = winnow.CompressedCache(model, winnow.method("full"), prompt_length=ids.shape[1])
    with reading(model, ids.shape[1]):
        prefill(model, ids, cache, 100)
    length, layers = ids.shape[1], model.config.num_hidden_layers
    assert len(seen) == layers * -(-length // 100)
    assert f"{100 / layers:,.0f} of {length} tokens" in seen[0]
    assert f"{length} of {length} tokens" in seen[-1]
    assert "a second" in seen[-1]
