"""Models by name: a hub name, a directory or a GGUF file. First what is small, then the weights."""

from winnow.models.devices import available_memory, pick_device
from winnow.models.dtypes import DTYPES
from winnow.models.experts import read_experts_directly
from winnow.models.few_rows import read_weights_directly
from winnow.models.gated import gate_in_one_pass
from winnow.models.gated_norms import gate_norms_in_one_pass
from winnow.models.loading import load_model, open_skeleton, skeleton_in
from winnow.models.mlps import feed_in_pieces
from winnow.models.norms import normalize_in_one_pass
from winnow.models.reading import first_line
from winnow.models.recurrent import recur_in_one_pass
from winnow.models.rotary import embed_in_one_pass
from winnow.models.source import ModelSource, answer_room, context_length, open_model
from winnow.models.spec import ModelSpec
from winnow.models.weights import WEIGHTS, quantize_weights, weights_of

__all__ = [
    "DTYPES",
    "WEIGHTS",
    "ModelSource",
    "ModelSpec",
    "answer_room",
    "available_memory",
    "context_length",
    "embed_in_one_pass",
    "feed_in_pieces",
    "first_line",
    "gate_in_one_pass",
    "gate_norms_in_one_pass",
    "load_model",
    "normalize_in_one_pass",
    "open_model",
    "open_skeleton",
    "pick_device",
    "quantize_weights",
    "read_experts_directly",
    "read_weights_directly",
    "recur_in_one_pass",
    "skeleton_in",
    "weights_of",
]
