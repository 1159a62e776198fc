"""Checks before a cache is made: what cannot work is refused with a word on what to do."""

from __future__ import annotations

from numbers import Integral
from typing import TypeGuard

from transformers import PreTrainedConfig, PreTrainedModel

from winnow.cache.attention import IMPLEMENTATION
from winnow.cache.latent import check_latent_model, is_latent
from winnow.errors import CacheError, ModelError, WinnowError
from winnow.models.adapters import check_prompt_learning
from winnow.models.kinds import check_attention, is_encoder_decoder


def text_config(model: PreTrainedModel) -> PreTrainedConfig:
    """The decoder's configuration, also inside a vision-language model."""
    config: PreTrainedConfig = model.config.get_text_config(decoder=True)
    return config


def check_model(model: PreTrainedModel) -> None:
    """Raises ModelError or CacheError for a model whose cache cannot be compressed, and for what is none."""
    if not isinstance(getattr(model, "config", None), PreTrainedConfig) or not hasattr(model, "get_decoder"):
        raise ModelError(
            f"the model is a {type(model).__name__}, which is not a transformers model: CompressedCache(model, method) "
            "and winnow.compress(model, input_ids, method) take the model first. Of a wrapper (DataParallel, a module "
            "of your own), pass the model inside."
        )
    check_prompt_learning(model)
    if is_encoder_decoder(model.config):
        raise ModelError(
            f"{type(model).__name__} is an encoder-decoder model; winnow compresses the caches of decoder-only models."
        )
    config = text_config(model)
    check_attention(config, type(model).__name__)
    if is_latent(config):
        check_latent_model(model)
    check_causal(model)
    check_implementation(config)


def check_causal(model: PreTrainedModel) -> None:
    """Raises ModelError for a model whose tokens see those behind them; its weights need not be there."""
    if not getattr(text_config(model), "is_causal", True) or _looks_ahead(model):
        raise ModelError(f"{type(model).__name__} is configured as bidirectional; winnow needs a causal model.")


def _looks_ahead(model: PreTrainedModel) -> bool:
    """True for encoders that transformers lists among models that write text, too: BERT and its kin."""
    causal = (each.is_causal for each in model.get_decoder().modules() if hasattr(each, "is_causal"))
    return not next(causal, True) and not any(causal)  # of most models the first module that tells is enough


def begun_anew(config: PreTrainedConfig) -> CacheError:
    """The error for several tokens behind others, of a model that reads each such pass from its beginning."""
    return CacheError(
        f"several tokens arrived after others, but the recurrent layers of this model ({config.model_type}) start from "
        "nothing in every pass over several tokens: give the prompt in one piece (no chunks, no question after a "
        "context, no candidates), then single tokens."
    )


def check_implementation(config: PreTrainedConfig) -> None:
    """Raises CacheError unless the decoder uses winnow's attention function."""
    current = getattr(config, "_attn_implementation", None)
    if current != IMPLEMENTATION:
        raise CacheError(
            f"the model's attention implementation is {current!r}; call "
            f'model.set_attn_implementation("{IMPLEMENTATION}") before using a CompressedCache, and do not change it. '
            "If that has no effect, the model has its own attention code, and winnow cannot compress its cache."
        )


def optional_count(name: str, value: object, counted: str, error: type[WinnowError] = CacheError) -> int | None:
    """An argument that is a number of something, at least 1, or None; raises `error` for anything else."""
    if value is None:
        return None
    if is_count(value):
        return int(value)
    raise error(f"{name} is {value!r}; give the number of {counted}, a whole number from 1, or None.")


def is_count(value: object) -> TypeGuard[int]:
    """True for a whole number of at least 1."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1
