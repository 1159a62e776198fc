"""Everything that has a name: published methods, and parts that can follow them, as data."""

from __future__ import annotations

from typing import Literal, NamedTuple

from winnow.allocate import Ada, Allocator, Pyramid, Uniform
from winnow.parameters import Parameter
from winnow.score import H2O, TOVA, Full, KeyDiff, Knorm, Random, Scorer, SnapKV, StreamingLLM
from winnow.store import Dense, Store

Kind = Literal["method", "allocator", "store"]


class MethodRecord(NamedTuple):
    """What a user can name, as `winnow.methods()` lists it."""

    name: str
    kind: Kind
    """A method stands alone; an allocator or a store follows one after a "+"."""
    summary: str
    paper: str
    """Authors, year and arXiv id; empty where nothing was published."""
    parameters: tuple[Parameter, ...]


class Preset(NamedTuple):
    """A method under a published name."""

    name: str
    summary: str
    paper: str
    scorer: Scorer
    allocator: Allocator = Uniform()
    store: Store = Dense()


class AllocatorPart(NamedTuple):
    """An allocator that can follow a method, as in "snapkv+ada"."""

    name: str
    summary: str
    paper: str
    allocator: Allocator


_SNAPKV = "Li et al. 2024, arXiv 2404.14469"
_PYRAMID = "Cai et al. 2024, arXiv 2406.02069"
_ADA = "Feng et al. 2024, arXiv 2407.11550"

PRESETS = (
    Preset("full", "Keeps everything; what other methods are compared with.", "", Full()),
    Preset("random", "Keeps random tokens; the floor that a method has to beat.", "", Random()),
    Preset(
        "streamingllm",
        "Keeps the first tokens (attention sinks) and the most recent ones.",
        "Xiao et al. 2023, arXiv 2309.17453",
        StreamingLLM(),
    ),
    Preset("snapkv", "Keeps what the last tokens of the prompt attend to.", _SNAPKV, SnapKV()),
    Preset(
        "h2o",
        "Keeps recent tokens and those that all tokens of the prompt attended to most.",
        "Zhang et al. 2023, arXiv 2306.14048",
        H2O(),
    ),
    Preset(
        "tova",
        "Keeps what the last token attends to, the same tokens in all heads of a layer.",
        "Oren et al. 2024, arXiv 2401.06104",
        TOVA(),
    ),
    Preset(
        "knorm",
        "Keeps keys of small norm.",
        "Devoto et al. 2024, arXiv 2406.11430",
        Knorm(),
    ),
    Preset(
        "keydiff",
        "Keeps keys unlike the mean key.",
        "Park et al. 2025, arXiv 2504.15364",
        KeyDiff(),
    ),
    Preset("pyramidkv", "SnapKV with more slots in early layers.", _PYRAMID, SnapKV(), Pyramid()),
    Preset("adakv", "SnapKV with heads of a layer competing for slots.", _ADA, SnapKV(), Ada()),
    Preset(
        "ada-pyramidkv",
        "SnapKV with more slots in early layers and heads competing inside each.",
        _ADA,
        SnapKV(),
        Ada(across=Pyramid()),
    ),
)

PARTS = (
    AllocatorPart("uniform", "The same number of slots per head in every layer.", "", Uniform()),
    AllocatorPart("pyramid", "More slots in early layers, fewer in late ones.", _PYRAMID, Pyramid()),
    AllocatorPart("ada", "Heads of a layer compete for its slots.", _ADA, Ada()),
)
