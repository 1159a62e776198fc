"""Models whose prompts are read in one piece, as later pieces would find something else than what came before them."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig

from winnow.models.kinds import starts_anew


def reads_in_pieces(config: PreTrainedConfig) -> bool:
    """True if a prompt that comes in pieces is read as it would be in one."""
    return not (starts_anew(config) or rotates_by_length(config))


def rotates_by_length(config: PreTrainedConfig) -> bool:
    """True if transformers chooses the rotary frequencies of a pass by its last position, that of the longest row.

    Then a row beside longer ones is not what it is alone, and neither is a prompt that is read in pieces.
    """
    given: dict[str, Any] = getattr(config.get_text_config(decoder=True), "rope_parameters", None) or {}
    # Of all layers, or by the type of the layer.
    kinds = [given, *(each for each in given.values() if isinstance(each, dict))]
    return any("dynamic" in kind or kind == "longrope" for each in kinds if (kind := str(each.get("rope_type"))))
