"""Logits of the last token alone, through wrappers, too."""

from __future__ import annotations

import torch

import winnow
from support.families import build
from winnow.evaluate.decoding import prefill
from winnow.models.last_logits import last_only


class Wrapped(torch.nn.Module):
    """A model as adapters wrap it: with a forward of its own, which passes on all that it is given."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *args, **kwargs):
        return self.model(*args, **kwargs)

    def __getattr__(self, name):
        return super().__getattr__(name) if name == "model" else getattr(self.model, name)


def test_wrapped_models_give_the_last_logits_alone():
    model = build("llama")
    model.set_attn_implementation("winnow")
    rows = []
    model.lm_head.register_forward_hook(lambda module, inputs, output: rows.append(output.shape[1]))
    assert last_only(Wrapped(model)) == {"logits_to_keep": 1}
    winnow.compress(Wrapped(model), torch.arange(20)[None], "snapkv @ 50%")
    prefill(Wrapped(model), torch.arange(20)[None], winnow.CompressedCache(model, "snapkv @ 50%"))
    assert rows == [1, 1]
