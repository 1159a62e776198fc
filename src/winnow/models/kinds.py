"""Kinds of models that write text, and classes of transformers that load them."""

from __future__ import annotations

from typing import Any

from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedConfig

from winnow.errors import OWN_CACHE, ModelError

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
    "blt": "keeps a cache for its bytes and one for their patches",
    "diffllama": "attends twice to the same keys, with other values than those that are cached",
    "doge": "makes attention masks of its own",
    "idefics": "asks its cache how many tokens it holds while layers are still adding theirs",
    "inkling_text": "adds a bias of positions to its attention logits",
    "inkling2_text": "adds a bias of positions to its attention logits",
    "jetmoe": "attends to other keys than those that are cached",
    "minimax": "keeps a cache of its own",
    "mllama_text_model": "caches the states of images, to which text attends",
}
"""Architectures that do something between cache and attention, by what it is."""
_INDEXES = ("index_topk", "index_topk_blocks", "index_n_heads", "indexer_types")
"""Facts of decoders that choose tokens by an index of their own (DeepSeek sparse attention and relatives)."""


def check_attention(config: PreTrainedConfig, name: str) -> None:
    """Raises ModelError for an architecture that does something between cache and attention."""
    text = config.get_text_config(decoder=True)
    if text.model_type in _OTHERWISE:
        told = _OTHERWISE[text.model_type]
        raise ModelError(f"{name} ({text.model_type}) {told}; winnow cannot compress it: {OWN_CACHE}.")
    if any(getattr(text, index, None) for index in _INDEXES):
        raise ModelError(
            f"{name} ({text.model_type}) chooses the tokens that it attends to by an index of its own, which covers "
            f"all of them (sparse attention); {OWN_CACHE}."
        )


def check_compressible(config: PreTrainedConfig, name: str) -> None:
    """Raises ModelError for an architecture whose cache winnow cannot compress."""
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"{name} is an encoder-decoder model ({config.model_type}); winnow compresses the caches of "
            "decoder-only models."
        )
    check_attention(config, name)
