"""The harness' own Hugging Face model, generating from a compressed cache."""

from __future__ import annotations

from typing import Any, NoReturn

from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from torch import Tensor

from winnow.cache import CacheStats, CompressedCache
from winnow.composition.names import method as read_method
from winnow.lm_eval.errors import LikelihoodError
from winnow.models.cache_argument import generation_name
from winnow.version import __version__


@register_model("winnow")
class WinnowLM(HFLM):
    """All that the harness' "hf" models do, with `method` and `fold_every` besides: batches, chat templates, devices.

    Results name them, and have the bytes that caches held at the end of answers.
    """

    def __init__(self, pretrained: Any, method: str = "full", fold_every: int | None = None, **options: Any) -> None:
        """pretrained: a directory, a name on the hub or a model; method: as `winnow.method` reads it, with its budget.

        options: of the harness' "hf" models. Raises MethodError and CacheError as `CompressedCache` does, before
        anything is generated.
        """
        self._method = read_method(str(method))
        self._fold_every = fold_every
        self._rows = self._used_bytes = self._full_bytes = 0
        super().__init__(pretrained=pretrained, **options)
        self.model.set_attn_implementation("winnow")
        self._cache()

    def _cache(self, prompt_length: int | None = None) -> CompressedCache:
        return CompressedCache(self.model, self._method, prompt_length=prompt_length, fold_every=self._fold_every)

    def _model_generate(self, context: Any, max_length: int, stop: list[str], **generation: Any) -> Tensor:
        """Answers of a batch; `context` and whatever follows are as the harness gives them."""
        cache = self._cache(context.shape[1])
        # Models whose own settings ask for a kind of cache are given this one instead.
        options = {"cache_implementation": None, generation_name(): cache, **generation}
        answers: Tensor = super()._model_generate(context=context, max_length=max_length, stop=stop, **options)
        self._count(cache.stats(), context.shape[0])
        return answers

    def _count(self, stats: CacheStats, answers: int) -> None:
        # Beams are rows, too, but not answers.
        self._rows += answers
        self._used_bytes += stats.used_bytes
        self._full_bytes += stats.full_bytes

    def loglikelihood(self, requests: Any, *_: Any, **__: Any) -> NoReturn:
        """Raises LikelihoodError."""
        raise LikelihoodError

    def loglikelihood_rolling(self, requests: Any, *_: Any, **__: Any) -> NoReturn:
        """Raises LikelihoodError."""
        raise LikelihoodError

    def get_model_info(self) -> dict[str, Any]:
        """Entries for the results' "config"; bytes are means over answers."""
        rows = max(1, self._rows)
        return {
            **super().get_model_info(),
            "winnow_version": __version__,
            "winnow_method": str(self._method),
            "winnow_fold_every": self._fold_every,
            "winnow_used_bytes": round(self._used_bytes / rows),
            "winnow_full_bytes": round(self._full_bytes / rows),
        }
