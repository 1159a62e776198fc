"""The options of `winnow chat`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from winnow.commands.options.shared import (
    AheadOptions,
    GenerationOptions,
    MaxNewTokens,
    ModelOptions,
    PrefillOptions,
    PromptOptions,
    Truncate,
)

CONVERSATION_METHOD = "adakv"
"""The method of a conversation without a document, where none is said."""
FOLD_EVERY = 128
"""Tokens of a conversation after which they are compressed, too, where nothing else is said."""
ConversationFold = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        help="Compress a conversation every N tokens, to stay within the budget; 0: never.",
        show_default=f"{FOLD_EVERY}, if the method can",
    ),
]


@dataclass(frozen=True, kw_only=True)
class ChatOptions(AheadOptions, ModelOptions, PromptOptions, PrefillOptions, GenerationOptions):
    """Chat with a model, optionally about a document, in one compressed cache."""

    document: Annotated[str | None, typer.Option(metavar="FILE", help="Text file to talk about.")] = None
    context: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A context that winnow compress wrote, instead of document, method and budget."
        ),
    ] = None
    truncate: Truncate = None
    max_new_tokens: MaxNewTokens = 512
    fold: ConversationFold = None
