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
    "dory": "repeats its layers, and attends in all repetitions but the last to tokens that are not cached",
    "idefics": "asks its cache how many tokens it holds while layers are still adding theirs",
    "inkling_text": "adds a bias of positions to its attention logits",
    "inkling2_text": "adds a bias of positions to its attention logits",
    "inkling2_loop_text": "adds a bias of positions to its attention logits",
    "jetmoe": "attends to other keys than those that are cached",
    "minimax": "keeps a cache of its own",
    "mllama_text_model": "caches the states of images, to which text attends",
}
"""Architectures that do something between cache and attention, by what it is."""
_STATES_ALONE = frozenset(("rwkv", "xlstm"))
"""Architectures without attention whose configurations do not show it; of others (Mamba) the cache's layers do."""
_STARTS_ANEW = frozenset(("jamba", "zamba"))
"""Architectures whose recurrent layers go on from their states in passes of one token only."""
_COUNTS_ANEW = frozenset(("bamba",))
"""Architectures that count the positions of every pass from 0 where none are given."""
_NEEDS_IMAGES = frozenset(("blip-2", "instructblip", "instructblipvideo", "kosmos-2"))
"""Image-text models that read no text alone."""
_INDEXES = ("index_topk", "index_topk_blocks", "index_n_heads", "indexer_types")
"""Facts of decoders that choose tokens by an index of their own (DeepSeek sparse attention and relatives)."""


def check_attention(config: PreTrainedConfig, name: str) -> None:
    """Raises ModelError for an architecture that does something between cache and attention."""
    text = config.get_text_config(decoder=True)
    if text.model_type in _OTHERWISE:
        told = _OTHERWISE[text.model_type]
        raise ModelError(f"{name} ({text.model_type}) {told}; winnow cannot compress it: {OWN_CACHE}.")
    if text.model_type in _STATES_ALONE:
        raise ModelError(
            f"{name} ({text.model_type}) has only recurrent states and no full-attention layer, so nothing can be "
            "compressed; use it without winnow."
        )
    chosen = "indexed_attention" in (getattr(text, "layer_types", None) or ())
    if chosen or any(getattr(text, index, None) for index in _INDEXES):
        raise ModelError(
            f"{name} ({text.model_type}) has sparse attention: it chooses tokens by an index of its own, which must "
            f"cover all of them; {OWN_CACHE}."
        )


def check_compressible(config: PreTrainedConfig, name: str) -> None:
    """Raises ModelError for a model that winnow cannot open for text: its cache, or text alone, does not serve."""
    if is_encoder_decoder(config):
        raise ModelError(
            f"{name} is an encoder-decoder model ({config.model_type}); winnow compresses the caches of "
            "decoder-only models."
        )
    check_attention(config, name)
    if config.model_type in _NEEDS_IMAGES:
        raise ModelError(
            f"{name} ({config.model_type}) needs an image in every prompt, but this command gives it only text. Load "
            "it with transformers, and pass CompressedCache(model, method) to it with prompts that have images."
        )


def is_encoder_decoder(config: PreTrainedConfig) -> bool:
    """True for a model of encoder and decoder, and for the decoder of one on its own, whose configuration denies it.

    Such a decoder (BartForCausalLM) caches as the whole does.
    """
    return bool(getattr(config, "is_encoder_decoder", False) or getattr(type(config), "is_encoder_decoder", False))


def starts_anew(config: PreTrainedConfig) -> bool:
    """True for a decoder that reads several tokens behind others as if nothing came before them."""
    return config.get_text_config(decoder=True).model_type in _STARTS_ANEW


def counts_anew(config: PreTrainedConfig) -> bool:
    """True for a decoder that counts positions from 0 in every pass, behind other tokens too, where none are given."""
    return config.get_text_config(decoder=True).model_type in _COUNTS_ANEW
