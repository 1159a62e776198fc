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
        parser=device_name, metavar="PLACE", help="Device to run the model on: auto, cpu, mps, cuda, cuda:1, …"
    ),
]
DeviceMap = Annotated[
    Literal["auto", "balanced", "balanced_low_0", "sequential"] | None,
    typer.Option(help="Spread the layers over all devices, instead of --device (needs accelerate)."),
]
Compare = Annotated[
    str | None,
    typer.Option(
        metavar="METHODS", help="Methods to compare with, at the same budget or their own: 'full,snapkv,adakv@10%'."
    ),
]
MaxNewTokens = Annotated[int, typer.Option(min=1, help="Maximum number of tokens in an answer.")]
Truncate = Annotated[
    Literal["middle"] | None,
    typer.Option(
        help="Cut the middle out of a text that is too long for the model; equal parts of its start and end stay.",
        show_default="refuse the text",
    ),
]
MetricName = Annotated[
    str,
    typer.Option(
        "--metric", parser=metric_name, metavar="NAME", help="Metric to score answers with: token_f1, rouge_l, …"
    ),
]
JournalPath = Annotated[
    Path | None,
    typer.Option(
        parser=result_file, metavar="FILE", help="File that records finished work.", show_default="next to --out"
    ),
]
Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        metavar="FILE",
        help="Python file that registers your own methods (winnow.register). May be repeated.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Set a parameter of the method. May be repeated."),
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
        str,
        typer.Option(help="Model: a directory, GGUF file or Hugging Face name.", show_default="the bundled model"),
    ] = BUNDLED_MODEL
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"], typer.Option(help="Data type of weights and cache.")
    ] = "auto"
    weights: Annotated[
        Literal["auto", "int8", "int4", "gguf"],
        typer.Option(
            help="Weights of linear layers, on a CPU: as in the checkpoint, int8, int4 in groups of 32, or near to the "
            "bits of a GGUF file."
        ),
    ] = "auto"


@dataclass(frozen=True, kw_only=True)
class MethodOptions:
    """A compression method with its budget and parameters."""

    method: Annotated[
        str, typer.Option(help="Compression method, optionally with parameters and parts: 'snapkv(window=16)+ada'.")
    ] = "adakv"
    budget: Annotated[
        str | None,
        typer.Option(
            help="Size of the cache: tokens per KV head (128), share of the prompt (2%) or bytes (64MiB).",
            show_default=DEFAULT_BUDGET,
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
        typer.Option(help="Compression method, optionally with parts: 'keydiff+bits(8)'.", show_default=AHEAD_METHOD),
    ] = None
    budget: Annotated[
        str | None,
        typer.Option(
            help="Size of the cache: tokens per KV head (128), share of the prompt (2%) or bytes (64MiB).",
            show_default=f"{AHEAD_BUDGET}; {DEFAULT_BUDGET} where --method is given",
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
            help="Instructions for the model: its template's system role, or text before the document if it has none.",
        ),
    ] = None
    no_chat_template: Annotated[
        bool, typer.Option("--no-chat-template", help="Write prompts as plain text, without a chat template.")
    ] = False
    prompt_template: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Text of the prompt, with {document}, {question} and optionally {system} where they go. It is put "
            "inside the chat template, if one is used.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class PrefillOptions:
    """The prefill of a prompt."""

    chunk_size: Annotated[
        int | None,
        typer.Option("--chunk", min=1, metavar="N", help="Prefill N tokens at a time, for less working memory."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """The way in which answers are made."""

    max_new_tokens: MaxNewTokens = 64
    temperature: Annotated[
        float,
        typer.Option(
            parser=temperature, metavar="T", help="0 takes the most likely token; above 0, tokens are sampled: 0.7, 1."
        ),
    ] = 0.0
    top_p: Annotated[
        float,
        typer.Option(
            parser=share, metavar="P", help="Sample from the most likely tokens with this total probability: 0.9."
        ),
    ] = 1.0
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, max=2**63 - 1, help="Seed of the sampling, for the same tokens again.", show_default="a new one"
        ),
    ] = None
    lookup: Annotated[
        int,
        typer.Option(
            min=0,
            max=63,
            metavar="N",
            help="On a CPU, look up in prompt and answer what came after the last words before, and check up to N such "
            "tokens in one pass: faster where answers quote or edit. 0: one token at a time.",
        ),
    ] = 15

    def __post_init__(self) -> None:
        for name, given in (("--top-p", self.top_p < 1), ("--seed", self.seed is not None)):
            if given and not self.temperature:
                raise typer.BadParameter("needs --temperature; at 0 nothing is sampled.", param_hint=name)


@dataclass(frozen=True, kw_only=True)
class ScoresFileOptions:
    """A new file of head scores, and what it says about them."""

    out: Annotated[Path, typer.Option(parser=result_file, metavar="FILE", help="The .safetensors file to write.")]
    license: Annotated[
        str, typer.Option(parser=plain_text, metavar="TEXT", help="License of the scores, stored in the file.")
    ] = ""
    notes: Annotated[str, typer.Option(parser=plain_text, metavar="TEXT", help="Notes, stored in the file.")] = ""
    keep_noise: Annotated[
        bool, typer.Option("--keep-noise", help="Write scores even if their two halves agree only by chance.")
    ] = False
    force: Force = False
