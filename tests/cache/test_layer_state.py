"""States of layers: a kind that cannot be written is named."""

from __future__ import annotations

import pytest

import winnow
from support.small_caches import compress, made
from winnow.cache import layer_state


def test_layers_that_cannot_be_written_are_named(tmp_path, monkeypatch):
    model = made("qwen3_next")
    context = compress(model)
    kinds = {kind: made for kind, made in layer_state._KINDS.items() if kind != "linear"}
    monkeypatch.setattr(layer_state, "_KINDS", kinds)
    with pytest.raises(winnow.ContextError, match="LinearAttentionLayer layers cannot be written"):
        context.save(tmp_path / "c")
    assert list(tmp_path.iterdir()) == []
