"""Scorers: what each token is worth to each KV head. One published idea per file."""

from winnow.score.base import LayerView, Scorer
from winnow.score.full import Full
from winnow.score.h2o import H2O
from winnow.score.keydiff import KeyDiff
from winnow.score.knorm import Knorm
from winnow.score.random_scorer import Random
from winnow.score.snapkv import SnapKV
from winnow.score.streamingllm import StreamingLLM
from winnow.score.tova import TOVA

__all__ = [
    "H2O",
    "TOVA",
    "Full",
    "KeyDiff",
    "Knorm",
    "LayerView",
    "Random",
    "Scorer",
    "SnapKV",
    "StreamingLLM",
]
