"""The options of `winnow serve`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from winnow.commands.options.chat import ConversationFold
from winnow.commands.options.shared import GenerationOptions, MaxNewTokens, MethodOptions, ModelOptions
from winnow.commands.options.values import plain_text


@dataclass(frozen=True, kw_only=True)
class ServeOptions(MethodOptions, ModelOptions, GenerationOptions):
    """Answer requests in OpenAI's form over HTTP, many side by side, from compressed caches."""

    context: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="What winnow compress wrote; requests name it, without its ending, as their model. May be repeated.",
        ),
    ] = None
    name: Annotated[
        str | None,
        typer.Option(
            parser=plain_text, metavar="TEXT", help="Name of the model for requests.", show_default="the model's own"
        ),
    ] = None
    system: Annotated[
        str | None,
        typer.Option(parser=plain_text, metavar="TEXT", help="Instructions for conversations that bring none."),
    ] = None
    no_chat_template: Annotated[
        bool, typer.Option("--no-chat-template", help="Plain text, also for a model with a chat template.")
    ] = False
    max_new_tokens: MaxNewTokens = 512
    fold: ConversationFold = None
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen at; 0.0.0.0 for all.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="Port to listen at; 0: a free one.")] = 8000
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="WINNOW_API_KEY",
            parser=plain_text,
            metavar="SECRET",
            help="Secret that requests must name. Rather set it in the environment, where others do not see it.",
            show_envvar=True,
        ),
    ] = None
    rows: Annotated[int, typer.Option(min=1, metavar="N", help="Answers side by side, at most.")] = 8
    waiting: Annotated[int, typer.Option(min=1, metavar="N", help="Requests that wait for their turn, at most.")] = 64
    conversations: Annotated[
        int, typer.Option(min=0, metavar="N", help="Conversations that are kept to be gone on with, at most.")
    ] = 16
