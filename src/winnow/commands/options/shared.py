"""Options that several commands have in common."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from winnow.budget import DEFAULT_BUDGET
from winnow.bundled import MODEL_PATH
from winnow.commands.options.values import device_name, metric_name, plain_text, result_file, share, temperature

BUNDLED_MODEL = str(MODEL_PATH)

Device = Annotated[
    str,
    typer.Option(
        parser=device_name, metavar="PLACE", help="Device of the model: auto, cpu, cuda, cuda:1 or the like, mps."
    ),
]
DeviceMap = Annotated[
    Literal["auto", "balanced", "balanced_low_0", "sequential"] | None,
    typer.Option(help="Instead of a device: spread the layers over all devices (needs accelerate)."),
]
Compare = Annotated[
    str | None,
    typer.Option(
        metavar="METHODS", help="Other methods to show, at the same budget or at their own: 'full,snapkv,adakv@10%'."
    ),
]
MaxNewTokens = Annotated[int, typer.Option(min=1, help="Tokens of an answer at most.")]
Truncate = Annotated[
    Literal["middle"] | None,
    typer.Option(
        help="Leave out the middle of a text that is too long for the model: its first and last half stay.",
        show_default="refuse it",
    ),
]
MetricName = Annotated[
    str,
    typer.Option("--metric", parser=metric_name, metavar="NAME", help="What an answer is worth: token_f1, rouge_l, …"),
]
JournalPath = Annotated[
    Path | None,
    typer.Option(parser=result_file, metavar="FILE", help="Where finished work is kept.", show_default="beside --out"),
]
Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        metavar="FILE",
        help="Python file that makes methods of your own known (winnow.register); may be repeated.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Parameter of the method; may be repeated."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """The place of a model."""

    device: Device = "auto"
    device_map: DeviceMap = None


@dataclass(frozen=True, kw_only=True)
class ModelOptions(DeviceOptions):
    """A model, and how it is loaded."""

    model: Annotated[
        str, typer.Option(help="Directory, GGUF file or Hugging Face name.", show_default="the bundled model")
    ] = BUNDLED_MODEL
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"], typer.Option(help="Type of weights and cache.")
    ] = "auto"
    weights: Annotated[
        Literal["auto", "int8", "int4"],
        typer.Option(help="Bits of linear layers, on a CPU: the checkpoint's own, 8, or 4 in groups of 32."),
    ] = "auto"


@dataclass(frozen=True, kw_only=True)
class MethodOptions:
    """A compression method with its budget and parameters."""

    method: Annotated[str, typer.Option(help="Compression method, also composed: 'snapkv(window=16)+ada'.")] = "adakv"
    budget: Annotated[
        str | None,
        typer.Option(
            help="Tokens per KV head (128), share of the prompt (2%) or bytes (64MiB).", show_default=DEFAULT_BUDGET
        ),
    ] = None
    settings: Settings = None
    plugins: Plugins = None


AHEAD_METHOD, AHEAD_BUDGET = "kvzip", "25%"
"""The method for questions that nobody knows yet: see docs/choosing.md."""


@dataclass(frozen=True, kw_only=True)
class AheadOptions:
    """A compression method for a document that is read before any question, with its budget and parameters."""

    method: Annotated[
        str | None,
        typer.Option(help="Compression method, also composed: 'keydiff+bits(8)'.", show_default=AHEAD_METHOD),
    ] = None
    budget: Annotated[
        str | None,
        typer.Option(
            help="Tokens per KV head (128), share of the prompt (2%) or bytes (64MiB).",
            show_default=f"{AHEAD_BUDGET}; {DEFAULT_BUDGET} for a method that is named",
        ),
    ] = None
    settings: Settings = None
    plugins: Plugins = None


@dataclass(frozen=True, kw_only=True)
class PromptOptions:
    """The words around document and question."""

    system: Annotated[
        str | None,
        typer.Option(
            parser=plain_text,
            metavar="TEXT",
            help="Instructions for the model: the system role of its template; without one, text before the document.",
        ),
    ] = None
    no_chat_template: Annotated[
        bool, typer.Option("--no-chat-template", help="Plain text, also for a model with a chat template.")
    ] = False
    prompt_template: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Text with {document}, {question} and maybe {system} in it; inside the chat template, if one is used.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class PrefillOptions:
    """The prefill of a prompt."""

    chunk_size: Annotated[
        int | None,
        typer.Option("--chunk", min=1, metavar="N", help="Prefill N tokens at a time: less working memory."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """The way in which answers are made."""

    max_new_tokens: MaxNewTokens = 64
    temperature: Annotated[
        float,
        typer.Option(
            parser=temperature, metavar="T", help="0 takes the most likely token; above, tokens are drawn: 0.7, 1."
        ),
    ] = 0.0
    top_p: Annotated[
        float,
        typer.Option(parser=share, metavar="P", help="Draw from the most likely tokens that make up this share: 0.9."),
    ] = 1.0
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=2**63 - 1, help="Draw the same tokens again.", show_default="another one every time"),
    ] = None

    def __post_init__(self) -> None:
        for name, given in (("--top-p", self.top_p < 1), ("--seed", self.seed is not None)):
            if given and not self.temperature:
                raise typer.BadParameter("needs --temperature; at 0 nothing is drawn.", param_hint=name)


@dataclass(frozen=True, kw_only=True)
class ScoresFileOptions:
    """A new file of head scores, and what it says about them."""

    out: Annotated[Path, typer.Option(parser=result_file, metavar="FILE", help="The .safetensors file to write.")]
    license: Annotated[
        str, typer.Option(parser=plain_text, metavar="TEXT", help="License of the scores, for the file.")
    ] = ""
    notes: Annotated[str, typer.Option(parser=plain_text, metavar="TEXT", help="Notes for the file.")] = ""
    keep_noise: Annotated[
        bool, typer.Option("--keep-noise", help="Write scores even where two halves of them agree by chance only.")
    ] = False
    force: Force = False
