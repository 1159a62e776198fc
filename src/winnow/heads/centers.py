"""Centers of a model's queries: where those of every head lie before their rotation, whatever the text."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from winnow.errors import HeadScoresError
from winnow.heads import storage
from winnow.heads.equality import EqualByContent, hash_of

HEADER = "winnow_query_centers"
_KIND = storage.TableKind(HEADER, 1, "query centers", "winnow heads centers", "measure them again")
_TENSORS = ("mean", "sizes")
_TEXTS = ("model", "text", "text_hash", "date")


@dataclass(frozen=True, eq=False)
class QueryCenters(EqualByContent):
    """The mean query of every head and the mean size of its rotary pairs, measured once per model.

    Equal centers have equal numbers; what is said about them does not count. Raises HeadScoresError for tensors of
    other shapes, and for numbers that are not finite.
    """

    mean: Tensor
    """[L, Hq, D] fp32 on the CPU, before the rotation."""
    sizes: Tensor
    """[L, Hq, D] fp32 on the CPU: the sizes of a layer's F pairs, then zeros; F is D without a rotation."""
    tokens: int = 1
    """Queries that were counted."""
    model: str = ""
    text: str = ""
    """Name of the text that they were measured on."""
    text_hash: str = ""
    """Hash of that text, or of its tokens; says which one it was where two have the same name."""
    date: str = ""
    """Day on which they were measured, as in ISO 8601."""
    path: Path | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in _TENSORS:
            given = getattr(self, name)
            if not isinstance(given, Tensor) or given.dim() != 3 or not given.is_floating_point():
                raise HeadScoresError(f"{name} of query centers must be floating-point numbers [layers, heads, …].")
            converted = given.detach().to("cpu", torch.float32).contiguous()
            if not bool(converted.isfinite().all()):
                raise HeadScoresError(f"{name} of query centers has NaN or infinite numbers; measure them again.")
            object.__setattr__(self, name, converted)
        if self.mean.shape != self.sizes.shape:
            raise HeadScoresError(
                f"query centers {list(self.mean.shape)} and sizes {list(self.sizes.shape)} are not of the same shape; "
                "measure them again."
            )
        if isinstance(self.tokens, bool) or not isinstance(self.tokens, int) or self.tokens < 1:
            raise HeadScoresError(f"tokens of query centers must be a whole number of at least 1, not {self.tokens!r}.")
        for name in _TEXTS:
            if not isinstance(getattr(self, name), str):
                raise HeadScoresError(f"{name} of query centers must be text, not {getattr(self, name)!r}.")

    @classmethod
    def load(cls, path: Path | str) -> QueryCenters:
        """Reads a file that `save` wrote. Raises HeadScoresError, and never unpickles."""
        path = Path(path).expanduser()
        tensors, header = storage.read_tensors(path, _KIND)
        if set(tensors) != set(_TENSORS):
            raise HeadScoresError(f"{path} holds {sorted(tensors)}, not query centers; {_KIND.again}.")
        # Facts that it does not name keep their defaults: files of earlier versions have fewer.
        facts = {name: header[name] for name in ("tokens", *_TEXTS) if name in header}
        try:
            return cls(tensors["mean"], tensors["sizes"], path=path, **facts)
        except (HeadScoresError, TypeError) as problem:
            raise HeadScoresError(f"{path}: {problem}") from None

    def save(self, path: Path | str) -> Path:
        """Writes a safetensors file, over an existing one if need be; returns its path. Raises HeadScoresError."""
        told = {name: getattr(self, name) for name in _TEXTS}
        header = {"version": _KIND.version, "tokens": self.tokens, **told}
        tensors = {name: getattr(self, name) for name in _TENSORS}
        return storage.write_tensors(Path(path).expanduser(), tensors, _KIND.header, header, "Query centers")

    def _content(self) -> tuple[object, ...]:
        return (tuple(self.mean.shape), tuple(self.sizes.shape), hash_of(self.mean, self.sizes))

    def __str__(self) -> str:
        layers, heads, _ = self.mean.shape
        return str(self.path) if self.path is not None else f"<query centers, {layers}x{heads}>"
