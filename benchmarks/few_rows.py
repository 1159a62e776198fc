"""Products of few rows: torch's linear layer, Winnow's, of fewer bits, too, and one packed beforehand, against a read.

    python benchmarks/few_rows.py        # writes docs/results/few_rows-VENDOR.*

CPU time of one thread, so that other work on the machine counts little. Contenders take turns, each on more copies of
the weight than caches hold; medians count.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import product
from statistics import median

import torch
from torch import Tensor, nn

from reporting import DTYPES, machine, markdown_table, of_this_processor, rounds_and_folder, write_results
from winnow.kernels.linear import multiplies_many
from winnow.kernels.native import read_sum
from winnow.kernels.onednn import has_onednn, linear_by_onednn
from winnow.models.compiled import CompiledLinear
from winnow.models.few_rows import layers_of_this_processor
from winnow.models.high_bits import HighBitsLinear
from winnow.models.int4 import Int4Linear
from winnow.models.int5 import Int5Linear
from winnow.models.int6 import Int6Linear
from winnow.models.int8 import Int8Linear
from winnow.models.levels import Levels
from winnow.models.lines import LINE
from winnow.models.room import Room
from winnow.models.transposed import TransposedLinear

SHAPES = ((896, 896), (896, 4864), (4864, 896), (896, 151936), (1536, 8960), (8960, 1536), (4096, 4096))
"""Inputs and outputs: layers of Qwen2.5 of 0.5B and 1.5B, and of Llama 3 of 8B."""
ROWS = (1, 4, 8, 16, 24, 32, 64, 512)
TORCHS, DIRECT, PACKED, READ = "torch's layer", "Winnow's layer", "packed by oneDNN", "a read of the weight"
IN_FILE = "the same, in a file's memory"
LEVELS: dict[str, tuple[type[HighBitsLinear], int]] = {"Q6_K": (Int6Linear, 16), "Q5_0": (Int5Linear, 32)}
"""By the kinds of blocks in a file: layers that keep these, and inputs that share a step."""
BEHIND = 8
"""Bytes between a cache line's start and a weight in a file: safetensors aligns to that many."""
KIND = layers_of_this_processor() or TransposedLinear
"""Winnow's layers: those that models have here, or would have with tiles."""
BYTES = 400 << 20
"""Size of all copies of a weight together, which are multiplied in turn."""

Product = Callable[[Tensor], object]


def contenders(layer: nn.Linear) -> dict[str, Product]:
    """Ways to multiply by the weight of a layer, and a read of it, by name; each takes the inputs."""
    whole = layer.weight.detach()
    return {
        TORCHS: layer,
        DIRECT: KIND.of(layer),
        IN_FILE: KIND.of(_in_file(layer)),
        **(_of_few_bits(whole) if HighBitsLinear.serves(whole.shape, whole.dtype) else {}),
        **_packed(whole),
        READ: lambda _: read_sum(whole),
    }


def _packed(weight: Tensor) -> dict[str, Product]:
    """The weight as oneDNN packs it, where torch lets it: not in types that the processor has no instructions for."""
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS[-1])
    except RuntimeError:
        return {}
    return {PACKED: lambda inputs: linear_by_onednn(inputs, packed, None)}


def _of_few_bits(weight: Tensor) -> dict[str, Product]:
    """Layers of a weight [O, I] in 8 and 4 bits, and of random levels of 6 and 5 bits as files hold them, by name."""
    room = Room(None)
    found: dict[str, Product] = {"8 bits": Int8Linear.rounded(weight, room)}
    for name, (kind, together) in LEVELS.items():
        outputs, inputs = weight.shape
        levels = torch.randint(0, 1 << kind.bits, weight.shape, dtype=torch.uint8)
        steps = torch.rand(outputs, inputs // together)
        stored = kind.room_for(weight.shape, weight.dtype, room)
        kind.write_levels(stored, slice(None), Levels(levels, 1 << (kind.bits - 1), steps, None))
        found[f"{kind.bits} bits, as {name}"] = kind(stored, None)
    found["4 bits"] = Int4Linear.rounded(weight, room)
    return found


def _in_file(layer: nn.Linear) -> nn.Linear:
    """A layer with a copy of the weight that begins within a cache line."""
    weight = layer.weight.detach()
    room = torch.empty(weight.numel() + LINE, dtype=weight.dtype)
    start = (BEHIND - room.data_ptr()) % LINE // weight.element_size()
    moved = room[start : start + weight.numel()].view(weight.shape).copy_(weight)
    twin = nn.Linear(layer.in_features, layer.out_features, bias=False, device="meta")
    twin.weight = nn.Parameter(moved)
    return twin


@dataclass(frozen=True)
class Timed:
    """Seconds of every contender for one layer and number of rows."""

    dtype: str
    inputs: int
    outputs: int
    rows: int
    seconds: dict[str, float]


def measure(dtype: torch.dtype, inputs: int, outputs: int, rounds: int) -> list[Timed]:
    """One layer with every number of rows; a round before the first is not counted."""
    copies = max(2, min(64, BYTES // (dtype.itemsize * inputs * outputs)))
    made = [contenders(nn.Linear(inputs, outputs, bias=False, dtype=dtype)) for _ in range(copies)]
    found = []
    for rows in ROWS:
        given = torch.randn(rows, inputs).to(dtype)
        times: dict[str, list[float]] = {name: [] for name in made[0]}
        for number in range(rounds + 1):
            for name, taken in times.items():
                spent = seconds_of([each[name] for each in made], given)
                taken += spent if number else []
        medians = {name: median(taken) for name, taken in times.items()}
        found.append(Timed(DTYPES[dtype], inputs, outputs, rows, medians))
    return found


def seconds_of(products: list[Product], given: Tensor) -> list[float]:
    """CPU seconds of each."""
    taken = []
    for multiplied in products:
        start = time.process_time()
        multiplied(given)
        taken.append(time.process_time() - start)
    return taken


def row(timed: Timed) -> list[str]:
    """A line of the table."""
    first = timed.seconds[TORCHS]
    cells = [
        f"{1e3 * taken:,.2f} ms" + ("" if name == TORCHS else f", {first / taken:.2f}x")
        for name, taken in timed.seconds.items()
    ]
    return [f"{timed.inputs:,} to {timed.outputs:,}", str(timed.rows), *cells]


def who_multiplies(dtype: torch.dtype) -> str:
    """A sentence about the layers of models on this processor."""
    if KIND is not layers_of_this_processor():
        return "Models have torch's layers here."
    many = "oneDNN" if KIND is CompiledLinear and dtype == torch.float32 and has_onednn() else "torch"
    if KIND is CompiledLinear and multiplies_many(dtype):
        return "Models have Winnow's layers here. They multiply any number of rows in their own way."
    few = f"They multiply up to {KIND.few(dtype)} rows in their own way, more by {many}."
    return f"Models have Winnow's layers here. {few}"


@torch.no_grad()
def main() -> None:
    """Measures and writes the table."""
    options = rounds_and_folder(__doc__, rounds=5)
    torch.set_num_threads(1)
    kinds = [dtype for dtype in DTYPES if KIND.few(dtype)]
    records = []
    for dtype, shape in product(kinds, SHAPES):
        records.extend(measure(dtype, *shape, options.rounds))
        print(f"{DTYPES[dtype]}, {shape[0]} to {shape[1]}: done", flush=True)
    tables = []
    for dtype in kinds:
        rows = [row(record) for record in records if record.dtype == DTYPES[dtype]]
        names = next(record.seconds for record in records if record.dtype == DTYPES[dtype])
        table = markdown_table(["layer", "rows", *names], rows)
        tables.append(f"## {DTYPES[dtype]}\n\n{who_multiplies(dtype)}\n\n{table}\n")
    print("\n".join(tables))
    about = (
        f"# Products of few rows\n\n`python benchmarks/few_rows.py`. {machine()} CPU time of linear layers; medians of "
        f"rounds that took turns, on more copies of the weight than a cache holds. Winnow's are `{KIND.__name__}`. "
        "Above 1x is faster than torch's layer. A read is the sum of the weight's bytes. In a file's memory a weight "
        "begins within a cache line. Those of 6 and 5 bits are as in blocks of a GGUF file.\n\n"
    )
    dicts = [asdict(record) for record in records]
    write_results(options.out, of_this_processor("few_rows"), about + "\n".join(tables), dicts)


if __name__ == "__main__":
    main()
