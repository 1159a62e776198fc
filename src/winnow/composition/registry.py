"""Everything that has a name: published methods, and parts that can follow them, as data."""

from __future__ import annotations

from typing import Literal, NamedTuple

from winnow.allocate import (
    LUKV,
    RABA,
    Ada,
    Allocator,
    Cake,
    CoKV,
    Duo,
    Global,
    HeadKV,
    HeadUnion,
    Masking,
    Pyramid,
    Uniform,
    ZigZag,
)
from winnow.parameters import Parameter
from winnow.score import (
    H2O,
    KVEC,
    RKV,
    TOVA,
    Critical,
    ExpectedAttention,
    Full,
    KeyDiff,
    Knorm,
    KVzip,
    Random,
    Scorer,
    SnapKV,
    StreamingLLM,
    TriAttention,
)
from winnow.store import Bits, Channels, Kivi, MixedBits, Precision, Spark, SparkG, SparkP, Think

PartKind = Literal["method", "allocator", "refiner", "store"]
Part = Scorer | Allocator | Channels | Precision


class MethodRecord(NamedTuple):
    """A method or part that a user can name, as `winnow.methods()` lists it."""

    name: str
    kind: PartKind
    """A "method" stands alone; an "allocator", a "refiner" or a "store" follows a method after a "+"."""
    summary: str
    """One line on what it does."""
    paper: str
    """Authors, year and arXiv id; empty if nothing was published."""
    parameters: tuple[Parameter, ...]
    """Its parameters, each with its default and meaning."""
    aliases: tuple[str, ...] = ()
    """Earlier names, which still work."""


class Preset(NamedTuple):
    """A method under a published name."""

    name: str
    summary: str
    paper: str
    scorer: Scorer
    allocator: Allocator = Uniform()


class NamedPart(NamedTuple):
    """An allocator, a second stage of scoring, or half of a store, that can follow a method, as in "snapkv+ada"."""

    name: str
    summary: str
    paper: str
    part: Part


_SNAPKV = "Li et al. 2024, arXiv 2404.14469"
_PYRAMID = "Cai et al. 2024, arXiv 2406.02069"
_ADA = "Feng et al. 2024, arXiv 2407.11550"
_CAKE = "Qin et al. 2025, arXiv 2503.12491"
_CRITICAL = "Feng et al. 2025, arXiv 2502.03805"
_HEADKV = "Fu et al. 2024, arXiv 2410.19258"
_COKV = "Sun et al. 2025, arXiv 2502.17501"
_DUO = "Xiao et al. 2024, arXiv 2410.10819"
_KVEC = "K-VEC, under review at ICLR 2026"
_KVZIP = "Kim et al. 2025, arXiv 2505.23416"
_LUKV = "Tang et al. 2026, arXiv 2602.08585"
_SPARK = "Liao et al. 2025, SPARK"
_APERTURE = "ApertureKV, under review at ICLR 2026"
_ZIGZAG = "Zhong et al. 2024, arXiv 2412.09036"

PRESETS = (
    Preset("full", "Keeps everything: the baseline for other methods.", "", Full()),
    Preset("random", "Keeps random tokens: the floor that a method has to beat.", "", Random()),
    Preset(
        "streamingllm",
        "Keeps the first tokens (attention sinks) and the most recent ones.",
        "Xiao et al. 2023, arXiv 2309.17453",
        StreamingLLM(),
    ),
    Preset("snapkv", "Keeps what the last tokens of the prompt attend to.", _SNAPKV, SnapKV()),
    Preset(
        "h2o",
        "Keeps recent tokens, and those that got the most attention from all tokens of the prompt.",
        "Zhang et al. 2023, arXiv 2306.14048",
        H2O(),
    ),
    Preset(
        "tova",
        "Keeps what the last token attends to; all heads of a layer keep the same tokens.",
        "Oren et al. 2024, arXiv 2401.06104",
        TOVA(),
    ),
    Preset(
        "knorm",
        "Keeps tokens whose keys have a small norm.",
        "Devoto et al. 2024, arXiv 2406.11430",
        Knorm(),
    ),
    Preset(
        "keydiff",
        "Keeps tokens whose keys differ most from the mean key.",
        "Park et al. 2025, arXiv 2504.15364",
        KeyDiff(),
    ),
    Preset(
        "expectedattention",
        "Keeps what queries after the prompt are expected to attend to.",
        "Devoto et al. 2025, arXiv 2510.00636",
        ExpectedAttention(),
    ),
    Preset(
        "kvzip",
        "Keeps what the model attends to while it repeats the prompt, for any question; heads of all layers compete.",
        _KVZIP,
        KVzip(),
        Global(),
    ),
    Preset(
        "kvzip-plus",
        "KVzip+: KVzip with attention weighted by each value's effect on the output.",
        _KVZIP,
        KVzip(normalize=True),
        Global(),
    ),
    Preset("pyramidkv", "SnapKV with more slots in early layers.", _PYRAMID, SnapKV(), Pyramid()),
    Preset("adakv", "SnapKV in which the heads of a layer compete for slots.", _ADA, SnapKV(), Ada()),
    Preset(
        "ada-pyramidkv",
        "SnapKV with more slots in early layers, in which the heads of a layer compete for slots.",
        _ADA,
        SnapKV(),
        Ada(across=Pyramid()),
    ),
    Preset(
        "criticalkv",
        "SnapKV for half of the slots; the rest by scores weighted with each value's effect on the output.",
        _CRITICAL,
        Critical(base=SnapKV()),
    ),
    Preset(
        "critical-adakv",
        "AdaKV for half of the slots; the rest by scores weighted with each value's effect on the output.",
        _CRITICAL,
        Critical(base=SnapKV()),
        Ada(),
    ),
    Preset(
        "defensivekv",
        "CriticalKV for what any of the last tokens attends to; the heads of a layer compete for slots.",
        "Feng et al. 2025, arXiv 2510.13334",
        Critical(base=SnapKV(reduce="max", aggregate="defensive")),
        Ada(floor=0.0),
    ),
    Preset(
        "headkv-r",
        "SnapKV with more slots, by head scores, for heads that copy a needle token by token.",
        _HEADKV,
        SnapKV(),
        HeadKV(expects="headkv-r"),
    ),
    Preset(
        "headkv-er",
        "SnapKV with more slots, by head scores, for heads that attend to the whole needle.",
        _HEADKV,
        SnapKV(),
        HeadKV(expects="headkv-er"),
    ),
    Preset(
        "headkv-r2",
        "SnapKV with more slots, by head scores, for heads that find a needle and reason about it.",
        _HEADKV,
        SnapKV(),
        HeadKV(expects="headkv-r2"),
    ),
    Preset(
        "cokv",
        "SnapKV with slots by head scores: sliced Shapley values, a head's part in coalitions of heads.",
        _COKV,
        SnapKV(),
        CoKV(expects="cokv"),
    ),
    Preset("kvec", "SnapKV whose heads and layers together keep more different tokens.", _KVEC, KVEC()),
    Preset(
        "rkv",
        "Keeps what the last tokens attend to, and one of several similar tokens; for long generations.",
        "Cai et al. 2025, arXiv 2505.24133",
        RKV(),
    ),
    Preset(
        "triattention",
        "Keeps what the mean query would attend to from a distance, and long keys; for long generations.",
        "Mao et al. 2026, arXiv 2604.04921",
        TriAttention(),
    ),
    Preset(
        "aperturekv",
        "SnapKV with diversified queries, and more slots for heads that differ from the others.",
        _APERTURE,
        SnapKV(diversify=0.45, over="prefix"),
        RABA(),
    ),
    Preset(
        "duoattention",
        "Keeps everything in retrieval heads, and sinks and recent tokens in all others.",
        _DUO,
        StreamingLLM(sinks=128, recent=256),
        Duo(expects="duoattention"),
    ),
)

PARTS = (
    NamedPart("uniform", "The same number of slots for every head of every layer.", "", Uniform()),
    NamedPart("pyramid", "More slots in early layers, fewer in late ones.", _PYRAMID, Pyramid()),
    NamedPart("ada", "Heads of a layer compete for its slots.", _ADA, Ada()),
    NamedPart("raba", "More of a layer's slots for heads that differ from its other heads.", _APERTURE, RABA()),
    NamedPart("global", "All heads of all layers compete for slots by their scores.", _KVZIP, Global()),
    NamedPart("cake", "More slots for layers whose attention is spread widely and moves.", _CAKE, Cake()),
    NamedPart("zigzag", "More slots for layers whose attention is spread over many tokens.", _ZIGZAG, ZigZag()),
    NamedPart("union", "One set of tokens for heads that share one latent per token.", _APERTURE, HeadUnion()),
    NamedPart("headkv", "Slots by head scores, from a pool to which every head contributes.", _HEADKV, HeadKV()),
    NamedPart("cokv", "Slots by how far a head's score is above the lowest ones, as in CoKV.", _COKV, CoKV()),
    NamedPart("lukv", "Slots by curves of what each further slot of a head is worth to what follows.", _LUKV, LUKV()),
    NamedPart(
        "masking",
        "The highest, lowest or random heads keep only their window; the others keep everything.",
        _COKV,
        Masking(),
    ),
    NamedPart(
        "critical",
        "Half of the slots by the scores; the rest by scores weighted with each value's effect on the output.",
        _CRITICAL,
        Critical(base=SnapKV()),
    ),
    NamedPart(
        "duo",
        "The heads with the highest scores keep everything; the others keep what is always kept.",
        _DUO,
        Duo(),
    ),
    NamedPart(
        "spark",
        "Every key keeps its most salient channels; the others are restored from a size and their signs.",
        _SPARK,
        Spark(),
    ),
    NamedPart("spark-p", "Every key keeps the fewest channels that make up most of its saliency.", _SPARK, SparkP()),
    NamedPart("spark-g", "Every key keeps one of a few shares of its channels, by its saliency.", _SPARK, SparkG()),
    NamedPart(
        "think", "Every head drops the key channels that it uses least.", "Xu et al. 2024, arXiv 2407.21018", Think()
    ),
    NamedPart("bits", "8, 6, 4, 3 or 2 bits per number; optionally, more in heads with high scores.", _COKV, Bits()),
    NamedPart(
        "mixedbits", "16, 8, 6, 4, 3 or 2 bits for every head by its score, up to a given mean.", _COKV, MixedBits()
    ),
    NamedPart(
        "kivi",
        "8, 6, 4, 3 or 2 bits, with keys scaled per channel and values per token.",
        "Liu et al. 2024, arXiv 2402.02750",
        Kivi(),
    ),
)

ALIASES = {"shapley": "cokv"}
"""Earlier names of parts, which keep working."""
PARAMETER_ALIASES = {"normalise": "normalize"}
"""Earlier names of parameters, which keep working."""
