"""The options of `winnow heads fetch`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from winnow.commands.options.shared import Force
from winnow.commands.options.values import result_file


@dataclass(frozen=True, kw_only=True)
class FetchOptions:
    """Download the published head scores of a model and write them in Winnow's own format, per KV head."""

    model: Annotated[str, typer.Argument(help="Name of the model: meta-llama/Meta-Llama-3-8B-Instruct.")]
    kind: Annotated[
        Literal["headkv-r", "headkv-r2", "duoattention", "cokv"],
        typer.Argument(help="Method whose scores to download."),
    ]
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            parser=result_file,
            metavar="FILE",
            help="The .safetensors file to write.",
            show_default="MODEL-KIND.safetensors",
        ),
    ] = None
    force: Force = False
