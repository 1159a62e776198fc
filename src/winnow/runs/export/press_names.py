"""Methods under the names of kvpress' evaluation registry."""

from __future__ import annotations

from winnow.runs.rows import method_and_budget

OWN = "winnow-"
"""Stands before methods that the registry does not have, or has with other settings."""

_SNAPKV = "(window=64, kernel=5, pool=avg, pool_first=true)"
PRESSES = {
    "full": "no_press",
    "random": "random",
    "knorm": "knorm",
    "keydiff": "keydiff",
    "keydiff(block=128)": "block_keydiff",
    "streamingllm": "streaming_llm",
    "tova(keep_last=true)": "tova",
    "h2o(recent=0, normalize=true)": "observed_attention",
    f"snapkv{_SNAPKV}": "snapkv",
    f"pyramidkv{_SNAPKV}": "pyramidkv",
    f"adakv{_SNAPKV}": "adakv_snapkv",
    f"snapkv{_SNAPKV}+ada": "adakv_snapkv",
    f"criticalkv{_SNAPKV}": "critical_snapkv",
    f"snapkv{_SNAPKV}+critical": "critical_snapkv",
    f"critical-adakv{_SNAPKV}": "critical_adakv_snapkv",
    f"snapkv{_SNAPKV}+ada+critical": "critical_adakv_snapkv",
    "expectedattention(epsilon=0.01)+ada": "expected_attention",
    "expectedattention(value_norm=false)+critical": "critical_expected_attention",
    "expectedattention(value_norm=false)+ada+critical": "critical_adakv_expected_attention",
}
"""Names in `evaluation/evaluate_registry.py` of kvpress, by the canonical text of the method that does the same."""


def press_name(method: str) -> str:
    """The press of a method, or the method's own name, marked as such. method: its canonical text."""
    name, _ = method_and_budget(method)
    return PRESSES.get(name, f"{OWN}{name}")
