"""Kinds of models that write text, and classes of transformers that load them."""

from __future__ import annotations

from typing import Any

from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedConfig

from winnow.errors import ModelError

# Models that are in both read text alone in their text-only form, or are the same class.
_LOADERS = (AutoModelForCausalLM, AutoModelForImageTextToText)


def loader_of(config: PreTrainedConfig) -> Any:
    """The class of transformers that loads a model for text: of image-text models, the whole of which text is a part.

    Raises ModelError for a model that writes no text.
    """
    for loader in _LOADERS:
        if type(config) in loader._model_mapping:
            return loader
    raise ModelError(f"{config.model_type} is no causal language model.")


_OTHERWISE = {
    "diffllama": "attends twice to the same keys, with other values than those that are cached",
    "doge": "makes attention masks of its own",
    "jetmoe": "attends to other keys than those that are cached",
    "minimax": "keeps a cache of its own",
}
"""Architectures that do something between cache and attention, by what it is."""


def check_attention(config: PreTrainedConfig, name: str) -> None:
    """Raises ModelError for an architecture that does something between cache and attention."""
    kind = config.get_text_config(decoder=True).model_type
    if kind in _OTHERWISE:
        raise ModelError(f"{name} ({kind}) {_OTHERWISE[kind]}; winnow cannot compress it: use its own cache.")


def check_compressible(config: PreTrainedConfig, name: str) -> None:
    """Raises ModelError for an architecture whose cache winnow cannot compress."""
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"{name} is an encoder-decoder model ({config.model_type}); winnow compresses the caches of "
            "decoder-only models."
        )
    check_attention(config, name)
    if getattr(config.get_text_config(decoder=True), "index_topk", None):
        raise ModelError(
            f"{name} chooses the tokens that it attends to by an index of its own ({config.model_type}), which covers "
            "all of them; use a model without sparse attention."
        )
