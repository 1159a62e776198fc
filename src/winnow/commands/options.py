"""Options that several commands have in common."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from winnow.bundled import MODEL_PATH


class Device(StrEnum):
    """Where the model runs."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Dtype(StrEnum):
    """The type of weights and cache."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


BUNDLED_MODEL = str(MODEL_PATH)

ModelOption = Annotated[str, typer.Option(help="Directory or Hugging Face name.", show_default="the bundled model")]
MethodOption = Annotated[str, typer.Option(help="Compression method, also composed: 'snapkv(window=16)+ada'.")]
BudgetOption = Annotated[
    str | None,
    typer.Option(help="Tokens per KV head (128), share of the prompt (2%) or bytes (64MiB).", show_default="128"),
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Parameter of the method; may be repeated."),
]
CompareOption = Annotated[
    str | None,
    typer.Option(metavar="METHODS", help="Other methods to show at the same budget: 'full,snapkv'."),
]
ChunkOption = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Prefill N tokens at a time: less working memory.")
]
FoldOption = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Compress again every N answer tokens: memory stays within the budget."),
]
AnswerTokensOption = Annotated[int, typer.Option(min=1, help="Tokens of an answer at most.")]
LicenceOption = Annotated[str, typer.Option(help="Licence of the scores, for the file.")]
NotesOption = Annotated[str, typer.Option(help="Notes for the file.")]
DeviceOption = Annotated[Device, typer.Option(help="Where the model runs.")]
DtypeOption = Annotated[Dtype, typer.Option(help="Type of weights and cache.")]
