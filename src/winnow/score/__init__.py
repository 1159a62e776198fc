"""Scorers: what each token is worth to each KV head. One published idea per file."""

from winnow.score.base import Ranking, Refiner, Replayer, Scorer
from winnow.score.critical import Critical
from winnow.score.expected import ExpectedAttention
from winnow.score.full import Full
from winnow.score.h2o import H2O
from winnow.score.keydiff import KeyDiff
from winnow.score.knorm import Knorm
from winnow.score.kvec import KVEC
from winnow.score.kvzip import KVzip
from winnow.score.random_scorer import Random
from winnow.score.rkv import RKV
from winnow.score.snapkv import SnapKV
from winnow.score.streamingllm import StreamingLLM
from winnow.score.tova import TOVA
from winnow.score.triattention import TriAttention

__all__ = [
    "H2O",
    "KVEC",
    "RKV",
    "TOVA",
    "Critical",
    "ExpectedAttention",
    "Full",
    "KVzip",
    "KeyDiff",
    "Knorm",
    "Random",
    "Ranking",
    "Refiner",
    "Replayer",
    "Scorer",
    "SnapKV",
    "StreamingLLM",
    "TriAttention",
]
