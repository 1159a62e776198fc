"""Memory and time of loading a checkpoint: plain, and in few bits, rounded as it is read or when it is there.

    python benchmarks/loading.py [FILE.gguf]  # quarter of an hour, 5 GB of disk; writes docs/results/loading-VENDOR.*

Models with random weights in published shapes, of a few layers: a mixture, whose experts transformers puts into one
tensor, a dense model in float32 files, and a mixture in a GGUF file, which transformers unpacks as a whole. Another
GGUF file may be given. Every load has a process of its own. Memory is what the process alone holds: pages of the
checkpoint's files, which the system takes back when it needs them, do not count.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Event, Thread
from typing import Any
from unittest.mock import patch

import torch
import transformers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, PreTrainedModel, Qwen3MoeConfig

from random_gguf import write_random_gguf
from reporting import RESULTS, machine, markdown_table, measured_apart, of_this_processor, write_results
from winnow.models import gguf_loading, load_model, open_model, quantize_weights
from winnow.models.gguf import is_gguf, stem
from winnow.models.source import ModelSource, read_configuration

STATUS = Path("/proc/self/status")
EVERY = 0.002
"""Seconds between two looks at the memory."""
VOCABULARY = 32_000
LAYERS = 4
"""Those of mixtures."""
SHAPES: dict[str, tuple[PreTrainedConfig, torch.dtype]] = {
    f"Qwen3-30B-A3B's shape, {LAYERS} layers, bfloat16": (
        Qwen3MoeConfig(
            vocab_size=VOCABULARY,
            hidden_size=2048,
            moe_intermediate_size=768,
            num_experts=128,
            num_experts_per_tok=8,
            num_hidden_layers=LAYERS,
            num_attention_heads=32,
            num_key_value_heads=4,
            head_dim=128,
        ),
        torch.bfloat16,
    ),
    "Llama 3.1 8B's shape, 1 layer, float32": (
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=4096,
            intermediate_size=14336,
            num_hidden_layers=1,
            num_attention_heads=32,
            num_key_value_heads=8,
        ),
        torch.float32,
    ),
}


def whole(source: ModelSource, weights: str) -> PreTrainedModel:
    """The model as transformers reads it, and then rounded."""
    if source.gguf:
        with patch.object(gguf_loading, "parameters_in", lambda *_: None):
            model: Any = load_model(source, "cpu", "bfloat16")
    else:
        model = AutoModelForCausalLM.from_pretrained(source.name, dtype=torch.bfloat16)
    if weights != "auto":
        quantize_weights(model, weights)
    return model


LOADS: dict[str, Callable[[ModelSource], PreTrainedModel]] = {
    "bfloat16, transformers": lambda source: whole(source, "auto"),
    "bfloat16": lambda source: load_model(source, "cpu", "bfloat16"),
    "int8, when all is read": lambda source: whole(source, "int8"),
    "`--weights int8`": lambda source: load_model(source, "cpu", weights="int8"),
    "int4, when all is read": lambda source: whole(source, "int4"),
    "`--weights int4`": lambda source: load_model(source, "cpu", weights="int4"),
}
OF_FILES = {name: load for name, load in LOADS.items() if name != "int8, when all is read"} | {
    "`--weights gguf`": lambda source: load_model(source, "cpu", weights="gguf")
}
"""Those of GGUF files."""


def own_memory() -> int:
    """Bytes that this process alone holds."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("RssAnon"))
    return 1024 * int(line.split()[1])


class Watch:
    """The most memory that the process holds within it."""

    def __enter__(self) -> Watch:
        self.most, self._done = own_memory(), Event()
        self._thread = Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(EVERY):
            self.most = max(self.most, own_memory())


def child(load: str, folder: str) -> None:
    """Loads a model of a folder or file once, and prints what it took."""
    transformers.logging.disable_progress_bar()
    unused: Any = None
    source = open_model(folder) if is_gguf(folder) else ModelSource(folder, read_configuration(folder), unused)
    before, begin = own_memory(), time.perf_counter()
    with Watch() as watch:
        model = (LOADS | OF_FILES)[load](source)
    seconds = time.perf_counter() - begin
    held = sum(each.nbytes for each in model.parameters())
    print(json.dumps([watch.most - before, own_memory() - before, held, seconds]))


def write_model(config: PreTrainedConfig, dtype: torch.dtype, folder: str) -> int:
    """Writes a model of random weights, which repeat; returns the bytes of its weights."""
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.to_empty(device="cpu")
    drawn = torch.randn(1 << 22).mul_(0.02).to(dtype)
    for each in model.parameters():
        each.detach().view(-1).copy_(drawn.repeat(-(-each.numel() // len(drawn)))[: each.numel()])
    model.save_pretrained(folder)
    return sum(each.nbytes for each in model.parameters())


def measured(folder: str, loads: Iterable[str]) -> dict[str, Any]:
    """Each load of a folder or file, in a process of its own: bytes at most, afterwards, of parameters; seconds."""
    return {load: measured_apart(["--child", load, folder]) for load in loads}


def table(title: str, size: int, found: dict[str, Any]) -> str:
    """A section of the page. size: bytes of the checkpoint."""
    rows = [
        [load, f"{most / 1e6:,.0f} MB", f"{after / 1e6:,.0f} MB", f"{held / 1e6:,.0f} MB", f"{seconds:.0f} s"]
        for load, (most, after, held, seconds) in found.items()
    ]
    head = ["loaded as", "memory at most", "afterwards", "of it parameters", "time"]
    return f"\n## {title}\n\nThe checkpoint has {size / 1e6:,.0f} MB.\n\n{markdown_table(head, rows)}\n"


def main() -> None:
    """Writes the models, loads them, prints and writes the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", help="a GGUF file")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return
    command = f"python benchmarks/loading.py{' FILE.gguf' if options.file else ''}"
    text = f"# Loading\n\n`{command}`. {machine()} Memory is the process's own, over that before.\n"
    all_found: dict[str, dict[str, Any]] = {}
    for shape, (config, dtype) in SHAPES.items():
        with tempfile.TemporaryDirectory(prefix="winnow-") as folder:
            size = write_model(config, dtype, folder)
            all_found[shape] = measured(folder, LOADS)
        text += table(shape, size, all_found[shape])
    with tempfile.TemporaryDirectory(prefix="winnow-") as folder:
        mixture = Path(folder, "mixture.gguf")
        write_random_gguf(mixture, LAYERS)
        files = {f"Qwen3-30B-A3B's shape, {LAYERS} layers, a GGUF file in 4 and 6 bits": mixture}
        if options.file:
            files[f"The GGUF file {stem(options.file)}"] = Path(options.file)
        for title, file in files.items():
            all_found[title] = measured(str(file), OF_FILES)
            text += table(title, file.stat().st_size, all_found[title])
    records = [
        {"shape": shape, "load": load, "most": most, "after": after, "parameters": held, "seconds": seconds}
        for shape, found in all_found.items()
        for load, (most, after, held, seconds) in found.items()
    ]
    print(text)
    write_results(options.out, of_this_processor("loading"), text, records)


if __name__ == "__main__":
    main()
