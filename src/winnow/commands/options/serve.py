"""The options of `winnow serve`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from winnow.commands.options.chat import ConversationFold
from winnow.commands.options.shared import GenerationOptions, MaxNewTokens, MethodOptions, ModelOptions
from winnow.commands.options.values import pause, plain_text


@dataclass(frozen=True, kw_only=True)
class ServeOptions(MethodOptions, ModelOptions, GenerationOptions):
    """Serve an OpenAI-compatible HTTP API that answers from compressed caches, several requests at once."""

    context: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Context that winnow compress wrote. Requests name it as their model, without its extension. May "
            "be repeated.",
        ),
    ] = None
    name: Annotated[
        str | None,
        typer.Option(
            parser=plain_text, metavar="TEXT", help="Name of the model in requests.", show_default="the model's own"
        ),
    ] = None
    system: Annotated[
        str | None,
        typer.Option(parser=plain_text, metavar="TEXT", help="System prompt for conversations without one."),
    ] = None
    no_chat_template: Annotated[
        bool, typer.Option("--no-chat-template", help="Write prompts as plain text, without a chat template.")
    ] = False
    max_new_tokens: MaxNewTokens = 512
    fold: ConversationFold = None
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="Port to listen on; 0: a free one.")] = 8000
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="WINNOW_API_KEY",
            parser=plain_text,
            metavar="SECRET",
            help="Secret that requests must send. Set it in the environment instead, where other users cannot see it.",
            show_envvar=True,
        ),
    ] = None
    rows: Annotated[int, typer.Option(min=1, metavar="N", help="Maximum number of answers at once.")] = 8
    waiting: Annotated[int, typer.Option(min=1, metavar="N", help="Maximum number of waiting requests.")] = 64
    conversations: Annotated[
        int, typer.Option(min=0, metavar="N", help="Maximum number of conversations kept in memory to be continued.")
    ] = 16
    starts: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Maximum number of starts that prompts share kept in memory. 0: none.",
        ),
    ] = 8
    longest_pause: Annotated[
        float,
        typer.Option(
            parser=pause,
            metavar="SECONDS",
            help="Time that answers may stand still while a piece of another prompt is read. A shorter one makes for "
            "steadier answers and slower prompts.",
        ),
    ] = 0.2
