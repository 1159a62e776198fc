"""Means and extremes of a diagnosis, and its form in JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest

import winnow
from support.diagnosis_oracle import plain
from support.families import build, prompt

LENGTH = 60


def test_means_and_extremes(llama):
    found = winnow.diagnose(llama, prompt(length=LENGTH), winnow.method("adakv", 12))
    counts = np.array(found.slots)
    assert found.mean_slots == counts.mean() == 12
    assert found.slot_range == (counts.min(), counts.max())
    assert found.rtd == pytest.approx(np.mean([layer.rtd for layer in found.layers]))
    assert found.iou == pytest.approx(np.mean([layer.iou[0, 1] for layer in found.layers]))
    assert found.mean_mass == pytest.approx(np.mean(found.mass))
    assert found.least_mass == pytest.approx(np.min(found.mass))
    errors = [layer.error for layer in found.layers]
    assert found.error == pytest.approx(np.mean(errors))
    assert found.worst_layer == int(np.argmax(errors))
    assert found.channel_cv == pytest.approx(np.mean([layer.channel_cv.numpy() for layer in found.layers]))
    assert found.channel_overlap == pytest.approx(np.mean([layer.channel_overlap.numpy() for layer in found.layers]))
    for layer, row in zip(found.layers, found.retention, strict=True):
        assert row.tolist() == [sum(t in head for head in plain(layer.kept)) for t in range(LENGTH)]


def test_one_kv_head_has_no_pairs():
    model = build("llama", num_hidden_layers=2, num_key_value_heads=1)
    model.set_attn_implementation("winnow")
    found = winnow.diagnose(model, prompt(length=30), winnow.method("snapkv", 10))
    assert found.iou is None
    assert found.as_dict()["layers"][0]["iou"] == [[1.0]]


def test_as_json(llama):
    found = winnow.diagnose(llama, prompt(length=LENGTH), winnow.method("snapkv", 16))
    entry = json.loads(json.dumps(found.as_dict()))
    assert (entry["method"], entry["budget"], entry["prompt_tokens"]) == ("snapkv", "16", LENGTH)
    assert [len(head) for head in entry["layers"][1]["kept"]] == entry["layers"][1]["slots"] == [16, 16]
    assert entry["error_mean"] == found.error
    assert (entry["channel_cv"], entry["channel_overlap"]) == (found.channel_cv, found.channel_overlap)
    second, layer = entry["layers"][1], found.layers[1]
    assert second["channel_cv"] == layer.channel_cv.tolist()
    assert second["channel_overlap"] == layer.channel_overlap.tolist()
    assert np.shape(second["mean_cosines"]) == (found.window, found.window)
    np.testing.assert_allclose(second["mean_cosines"], np.mean(layer.cosines.numpy(), axis=0))
    np.testing.assert_allclose(second["mean_diversified_cosines"], np.mean(layer.diversified_cosines.numpy(), axis=0))
