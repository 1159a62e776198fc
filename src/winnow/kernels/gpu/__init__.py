"""Decode attention in Triton: split over the slots of ragged heads, every stored form, a few launches a step.

Prefixes and tails are cut into chunks of one head each, which one program attends to: one launch for what is dense, one
for every form in which slots are packed. What chunks found is joined by log-sum-exp in a last launch. At the end of a
prefill others score the prompt's tokens and pack the chosen ones. Nothing of a step waits for the device, and
nothing loops over heads or rows.

| file | its one idea |
|---|---|
| `plan.py` | a layer's decode step: which launches, over which tables |
| `branches.py` | launches that need not wait for each other, as branches of a graph |
| `streams.py` | streams besides the usual one, one for each purpose |
| `scratch.py` | memory of a step, bounded |
| `chunks.py` | slots of all rows and heads, cut into chunks of about equal size |
| `forms.py` | form of the numbers of a part, and the addresses at which a kernel finds them |
| `tiles.py` | columns of tiles |
| `precision.py` | dtype in which numbers are multiplied |
| `softmax.py` | logits capped, and what is subtracted from them |
| `queries.py` | queries of a KV head |
| `asking.py` | queries in the coordinates in which keys are written |
| `decode.py` | attention of a chunk |
| `rows.py` | rows of slots, in whatever form, and products with them |
| `integers.py` | integers as they lie, a plane at a time |
| `unpacking.py` | integers in bytes as numbers of 16 bits, four at a time |
| `scales.py` | scales of slots, of channels in 32 slots, of neighboring channels |
| `pruned.py` | rows that kept channels of their own, a quarter of each for a thread |
| `masks.py` | masks of such rows, and the places of kept numbers in them |
| `starts.py` | where such rows begin, and the signs of what is gone |
| `kept.py` | kept numbers, by their places |
| `standing.py` | what stands for entries that are gone |
| `drawing.py` | random sizes of what is gone |
| `keeping.py` | a token of every row, written into the tail where the device says |
| `merging.py` | partial results joined, turned back and normalized |
| `turning.py` | the Walsh–Hadamard transform of rows that a program holds |
| `launching.py` | queries, slots, warps and stages of a program |
| `scoring.py` | attention of a prompt's last queries: what each of them found in all keys |
| `paying.py` | what every key is paid by them, in sums or the most |
| `window_tiles.py` | tiles of these queries, of keys, of their logits |
| `projecting.py` | sizes of what values add to a layer's output |
| `gathering.py` | chosen slots where they lie, in the coordinates in which they are packed |
| `packing.py` | chosen slots as packed integers with scales |
| `feeding.py` | chosen keys as integers whose errors make up for each other |
| `writing.py` | integers scaled and rounded, in planes of bytes |
| `pruning.py` | chosen slots that keep channels of their own, split where they lie |
| `choosing.py` | the channels that a slot keeps |
| `summarizing.py` | statistics of what is gone, summed up in the CPU's order |
| `requantizing.py` | what such slots kept, as integers with scales |
| `summing.py` | chosen slots summed up by head, and their squares |
| `constants.py` | functions of constants, while kernels are compiled |
| `support.py` | what all these serve |
"""
