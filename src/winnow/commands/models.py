"""`winnow models`: models to begin with, and those in this machine's cache."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.markup import escape
from rich.table import Table

from winnow.commands.console import output
from winnow.commands.local_models import LocalModel, local_models
from winnow.commands.options.models import ModelsOptions
from winnow.commands.recommended import WEIGHTS_SHARE, Shape, recommended
from winnow.commands.whole_table import print_whole

_TOKENS = 1000


def models(options: ModelsOptions) -> None:
    """Prints both lists."""
    shapes, found = recommended(), local_models()
    if options.as_json:
        lists = {"recommended": [shape.as_dict() for shape in shapes], "local": [asdict(model) for model in found]}
        print(json.dumps(lists, indent=2))
        return
    console = output()
    print_whole(console, _recommended_table(shapes))
    console.print(
        f"\nmemory: weights in bf16 take at most {WEIGHTS_SHARE:.0%} of it; the rest is for activations, libraries and "
        f"the cache · cache: keys and values of {_TOKENS:,} tokens in bf16, uncompressed",
        style="dim",
    )
    console.print("Use one with: winnow run --model NAME … (it is downloaded the first time).\n", style="dim")
    if found:
        print_whole(console, _local_table(found))
    else:
        console.print("No models in this machine's Hugging Face cache.")


def _recommended_table(shapes: Sequence[Shape]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("memory", justify="right", no_wrap=True)
    table.add_column("name", style="bold", no_wrap=True)
    for column in ("weights", "layers", "heads", "cache", "context"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("good for")
    for shape in shapes:
        table.add_row(
            f"{shape.memory >> 30} GiB",
            shape.name,
            f"{shape.weight_bytes / 2**30:.1f} GiB",
            str(shape.layers),
            f"{shape.heads}/{shape.kv_heads}",
            f"{_TOKENS * shape.cache_bytes_per_token / 2**20:.0f} MiB",
            f"{shape.context:,}",
            shape.good_for,
        )
    return table


def _local_table(found: Sequence[LocalModel]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("on this machine", style="bold", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("can be compressed")
    for model in found:
        verdict = "yes" if model.problem is None else f"no: {model.problem}"
        table.add_row(escape(model.name), f"{model.bytes / 2**30:.1f} GiB", escape(verdict))
    return table
