"""A warning where a model does not know the words that it is given, and can only answer with nonsense."""

from __future__ import annotations

import re
from collections.abc import Iterable

from transformers import PreTrainedTokenizerBase

from winnow.bundled import is_bundled
from winnow.commands.console import messages
from winnow.commands.model_names import model_name
from winnow.models import ModelSource

FOREIGN = 0.25
"""Share of unknown words from which on a text is warned of: more than a text that is known has in strange names, less
than everyday English, of which the bundled model knows the small words."""

ADVICE = "For your own texts, use a real model, such as --model Qwen/Qwen2.5-0.5B-Instruct (winnow models lists more)"
_ONLY = " It can only read texts like examples/report.txt."
_TOLD = 2


def warn_of_unknown_words(source: ModelSource, texts: Iterable[tuple[str, str]]) -> bool:
    """Says on standard error that texts have many words outside the model's vocabulary; True if it had to.

    texts: each after its name in the sentence, as in ("the document", …), ("the question", …).
    """
    shares = [(name, unknown_share(source.tokenizer, text)) for name, text in texts]
    foreign = [f"{share:.0%} of the words of {name}" for name, share in shares if share >= FOREIGN]
    if not foreign:
        return False
    more = [f"many of {len(foreign) - _TOLD} more texts"] if len(foreign) > _TOLD else []
    only = _ONLY if is_bundled(source.name) else ""
    messages().print(
        f"Warning: {model_name(source)} does not know {' and '.join([*foreign[:_TOLD], *more])}, so its answers are "
        f"meaningless here.{only} {ADVICE}",
        style="yellow",
        soft_wrap=True,
        markup=False,
    )
    return True


def unknown_share(tokenizer: PreTrainedTokenizerBase, text: str) -> float:
    """The share of a text's words, each as often as it occurs, that the tokenizer has no tokens for; 0 of no words."""
    words = re.findall(r"\w+", text)
    if tokenizer.unk_token_id is None or not words:
        return 0.0
    distinct = sorted(set(words))
    ids = tokenizer(distinct, add_special_tokens=False).input_ids
    outside = {word for word, tokens in zip(distinct, ids, strict=True) if tokenizer.unk_token_id in tokens}
    return sum(word in outside for word in words) / len(words)
