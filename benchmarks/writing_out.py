"""Weights of 4 bits written out for many rows: by torch's operators, and by Winnow's kernel.

    python benchmarks/writing_out.py        # writes docs/results/writing_out-VENDOR.*

Times of the threads that torch uses. Ways take turns; medians count.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import torch
from torch import Tensor, nn

from reporting import machine, markdown_table, of_this_processor, rounds_and_folder, write_results
from rounds import measure
from winnow.kernels import native
from winnow.models import quantized
from winnow.models.int4 import Int4Linear

SHAPES = ((896, 4864), (4864, 896), (4096, 4096), (4096, 14336))
"""Inputs and outputs of a layer."""
ROWS = 256
TORCHS, KERNEL, PLAIN = "by torch", "by the kernel", "plain"


def by_torch(call: Callable[[], Tensor]) -> Tensor:
    """The same where there are no kernels."""
    with patch.object(native, "library", lambda: None):
        return call()


def from_written_out(layer: Int4Linear, rows: Tensor) -> Tensor:
    """Outputs of a layer that writes its weight out, as where no kernels are made for many rows."""
    with patch.object(quantized, "multiplies_many", lambda _: False):
        found: Tensor = layer(rows)
        return found


@torch.no_grad()
def main() -> None:
    """Measures and writes the table."""
    options = rounds_and_folder(__doc__, rounds=21)
    rows, records = [], []
    for inputs, outputs in SHAPES:
        plain = nn.Linear(inputs, outputs, bias=False).bfloat16()
        layer, given = Int4Linear.of(plain), torch.randn(ROWS, inputs).bfloat16()
        weight, product = partial(getattr, layer, "weight"), partial(from_written_out, layer, given)
        written = measure({TORCHS: partial(by_torch, weight), KERNEL: weight}, options.rounds).medians()
        ways = {TORCHS: partial(by_torch, product), KERNEL: product, PLAIN: partial(plain, given)}
        multiplied = measure(ways, options.rounds).medians()
        cells = [f"{1e3 * seconds:.2f} ms" for seconds in (*written.values(), *multiplied.values())]
        cells[1] += f", {written[TORCHS] / written[KERNEL]:.1f}x"
        cells[3] += f", {multiplied[TORCHS] / multiplied[KERNEL]:.2f}x"
        rows.append([f"{inputs:,} to {outputs:,}", *cells])
        records.append({"inputs": inputs, "outputs": outputs, "written_s": written, "multiplied_s": multiplied})
    head = ["layer", *(f"written {way}" for way in (TORCHS, KERNEL))]
    head += [f"{ROWS} rows, written {way}" for way in (TORCHS, KERNEL)] + [f"{ROWS} rows, weights in bfloat16"]
    table = markdown_table(head, rows)
    print(table)
    about = (
        f"# Weights of 4 bits, written out\n\n`python benchmarks/writing_out.py`. {machine()} Time to write the "
        f"whole weight of `Int4Linear` out in bfloat16 at once, its memory included, and of the layer with {ROWS} rows "
        f"of inputs, which writes it out in pieces; beside it a layer of torch "
        f"whose weight is in bfloat16. Medians of {options.rounds} turns. Above 1x is faster than by torch's "
        "operators.\n\n"
    )
    write_results(options.out, of_this_processor("writing_out"), about + table + "\n", records)


if __name__ == "__main__":
    main()
