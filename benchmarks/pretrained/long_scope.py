"""Scope of the study on long prompts: the tasks and the methods that it compares."""

from __future__ import annotations

from evaluated import Part
from scope import COMBINED, STORES, Division, by_task

KIND = "r"
"""The needle by which heads are scored."""

RULER = Part(
    "ruler-16k",
    "RULER, prompts of 16,384 tokens, question seen at compression",
    ("ruler", "--lengths", "16384", "--examples", "3", "--protocol", "ruler"),
    (
        *("snapkv", "pyramidkv", "adakv", "kvec", "aperturekv", "h2o", "keydiff", "streamingllm", "snapkv+cake"),
        f"headkv-{KIND}(scores={{folder}}/headkv-{KIND}.safetensors)",
        *STORES[:4],
        "full+spark(0.5)",
        "full+spark(0.8)",
        *COMBINED,
    ),
    "1%,2%,5%,10%",
)
DIVISION = Division("5%", "by task", by_task)
