"""Settings of `model.generate` for one answer that is written from a compressed cache."""

from __future__ import annotations

import copy
from typing import Any

from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from winnow.cache.guards import optional_count
from winnow.errors import PromptError

MAX_NEW_TOKENS = 128
"""Tokens of an answer at most, where nothing else is said."""

CANDIDATES = ("prompt_lookup_num_tokens", "assistant_early_exit")
"""Settings that have several tokens guessed and then checked in one pass, the first of which reads the whole prompt."""
_IMPOSSIBLE = (
    "cache_implementation",  # the cache is there
    "token_healing",  # another prompt than the one that was read
    "use_mtp",
    "is_assistant",
    "penalty_alpha",
    "dola_layers",
    "constraints",
    "force_words_ids",
)
"""Settings that no answer of `winnow.generate` can have."""
_NOT_OF_THE_MODEL = frozenset(("max_length", "prefill_chunk_size", *CANDIDATES, *_IMPOSSIBLE))
"""Settings that are not taken from those that come with a model."""


class AnswerSettings(GenerationConfig):  # type: ignore[misc]
    """Settings whose gaps transformers fills with what comes with the model, but for what an answer cannot have."""

    def update(self, defaults_only: bool = False, **named: Any) -> dict[str, Any]:
        """As `model.generate` calls it."""
        if defaults_only:
            named = {name: value for name, value in named.items() if name not in _NOT_OF_THE_MODEL}
        unused: dict[str, Any] = super().update(defaults_only=defaults_only, **named)
        return unused


def answer_settings(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    given: GenerationConfig | None,
    max_new_tokens: int | None,
) -> AnswerSettings:
    """Settings for `model.generate`. Raises PromptError for those that one answer from a compressed cache cannot have.

    They have `max_new_tokens`, or `max_length`, or both.
    """
    settings = AnswerSettings()
    settings.__dict__.update(copy.deepcopy(vars(_greedy() if given is None else given)))
    if (settings.num_beams or 1) > 1 or (settings.num_return_sequences or 1) > 1:
        raise PromptError(
            "winnow.generate returns one sequence: for beams or several, pass a CompressedCache to model.generate."
        )
    for name in _IMPOSSIBLE:
        asked = getattr(settings, name, None)
        # Whoever changes a copy of the model's own settings does not ask for all that is in it.
        if asked not in (None, False, 0) and asked != getattr(model.generation_config, name, None):
            raise PromptError(
                f"generation_config has {name}={asked!r}, but winnow.generate writes one answer to the unchanged "
                f"prompt, token by token, from its own cache: leave {name} out."
            )
        setattr(settings, name, None)
    most = optional_count("max_new_tokens", max_new_tokens, "tokens of an answer", PromptError)
    settings.max_new_tokens = most or settings.max_new_tokens
    if settings.max_new_tokens is None and settings.max_length is None:
        settings.max_new_tokens = MAX_NEW_TOKENS
    # Said in full, as transformers fills gaps from what comes with the model.
    settings.return_dict_in_generate, settings.use_cache = False, True
    settings.output_attentions = settings.output_hidden_states = False
    settings.output_scores = settings.output_logits = False
    settings.num_beams = settings.num_return_sequences = 1
    if settings.pad_token_id is None and model.generation_config.pad_token_id is None:
        # Nothing is padded, but transformers tells whoever has no such token.
        settings.pad_token_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    return settings


def _greedy() -> GenerationConfig:
    """The most likely tokens; said in full, as transformers fills gaps from what comes with the model."""
    neutral: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": 50, "repetition_penalty": 1.0}
    return GenerationConfig(do_sample=False, num_beams=1, **neutral)
