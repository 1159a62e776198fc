"""Multi-head latent attention (DeepSeek-V2 and V3 and relatives): which models have it, and their matrices.

Such a model caches one latent c [C] and one rotated key r [Dr] per token and layer. Head h makes its key and its value
of them: k = [W_k,h·c, r] and v = W_v,h·c. `expand_kv` of transformers' attention modules does so for all tokens that a
cache gives back. With q = [q_c, q_r] the logits are also (q_c·W_k,h)·c + q_r·r, and the output is W_v,h times the
weighted sum of the latents (DeepSeek-V2, arXiv 2405.04434, §2.1): attention straight over what is cached.
"""

from __future__ import annotations

import math
from weakref import ref

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from winnow.cache.layer_config import of_full_layers
from winnow.errors import CacheError, ModelError
from winnow.kernels.head_matrices import HeadMatrices
from winnow.models.int8 import Int8Linear

UNCACHED = (
    "this model uses multi-head latent attention, and its code expands latents before it caches them. Load it with "
    "transformers' own code (no trust_remote_code), or use the model's own cache."
)
_REMEDY = "Use the model unquantized and not offloaded, with adapters merged into its weights, or its own cache."
_TOLERANCE = 8
"""Units in the last place, relative to the norms, by which two orders of summing may differ."""


def is_latent(config: PreTrainedConfig) -> bool:
    """True for a decoder whose heads share one latent per token."""
    return bool(getattr(config, "kv_lora_rank", None))


def slot_dims(config: PreTrainedConfig) -> tuple[int, int]:
    """Numbers of a cached key and value per KV head: D and Dv, or C and Dr where heads share latents."""
    if is_latent(config):
        return config.kv_lora_rank, config.qk_rope_head_dim
    config = of_full_layers(config)
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(dim), int(dim)


def query_dim(config: PreTrainedConfig) -> int:
    """Numbers of a query of one head."""
    if is_latent(config):
        return int(config.qk_nope_head_dim + config.qk_rope_head_dim)
    return slot_dims(config)[0]


def check_latent_model(model: PreTrainedModel) -> None:
    """Raises ModelError for a model with latents that this cache cannot compress."""
    if not any(hasattr(module, "expand_kv") for module in model.modules()):
        raise ModelError(UNCACHED)


def expanded(attention: nn.Module, latents: Tensor, rotated: Tensor) -> tuple[Tensor, Tensor]:
    """Keys [R, Hq, N, D] and values [R, Hq, N, Dv] as a module makes them for its heads.

    latents, rotated: [R, 1, N, C] and [R, 1, N, Dr].
    """
    with torch.no_grad():
        keys, values = attention.expand_kv(latents, rotated)  # type: ignore[operator]
    return keys, values


class Projection:
    """The way from queries to queries of latents, and from sums of latents to outputs, of one attention module."""

    def __init__(self, attention: nn.Module, heads: int, latent_dim: int, rotated_dim: int) -> None:
        """heads: Hq; latent_dim, rotated_dim: C, Dr.

        Raises ModelError where the weight alone does not say what `expand_kv` computes (quantized, with an adapter).
        """
        self._attention = ref(attention)
        self._heads = heads
        self._check(attention, latent_dim, rotated_dim)
        matrices = self.matrices()
        plain, value = matrices.plain, matrices.outputs
        saved = 2 * latent_dim - plain - value
        self.tokens_to_expand_for = latent_dim * (plain + value) / saved if saved > 0 else math.inf
        """New tokens at a time from which on expanding is less work than attending to latents: per latent and head,
        C·(D - Dr + Dv) products once and D + Dv for each token, instead of 2·C + Dr for each."""

    def matrices(self) -> HeadMatrices:
        """A view of the weight as it is now. Raises CacheError where the model is gone."""
        attention = self._module()
        numbers, scales = _numbers_of(attention)
        by_head = numbers.detach().unflatten(0, (self._heads, -1))
        of_rows = None if scales is None else scales.detach().unflatten(0, (self._heads, -1))
        return HeadMatrices(by_head, int(attention.qk_nope_head_dim), of_rows)  # type: ignore[arg-type]

    def place(self) -> tuple[object, ...]:
        """Addresses and dtype of the weight as it is now. Raises CacheError where the model is gone."""
        numbers, scales = _numbers_of(self._module())
        return numbers.data_ptr(), numbers.dtype, None if scales is None else scales.data_ptr()

    def absorbed(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """query [R, Hq, Q, D] -> what it asks of latents [R, Hq, Q, C], and of rotated keys [R, Hq, Q, Dr]."""
        matrix = self.matrices().keys
        plain, rotated = query.split([matrix.shape[1], query.shape[-1] - matrix.shape[1]], dim=-1)
        return _by_head(plain, matrix), rotated

    def output(self, sums: Tensor) -> Tensor:
        """Sums of latents [R, Hq, Q, C] -> outputs of heads [R, Q, Hq, Dv]."""
        return _by_head(sums, self.matrices().values.mT).transpose(1, 2)

    def expanded(self, latents: Tensor, rotated: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values that the heads make of latents; see `expanded`."""
        return expanded(self._module(), latents, rotated)

    def _module(self) -> nn.Module:
        attention = self._attention()
        if attention is None:
            raise CacheError("the model of this cache was deleted; keep it while you decode.")
        return attention

    def _check(self, attention: nn.Module, latent_dim: int, rotated_dim: int) -> None:
        """Compares a token as the module expands it with what the matrices make of it."""
        weight, scales = _numbers_of(attention)
        if type(weight) is not nn.Parameter or weight.is_meta or (scales is None and not weight.is_floating_point()):
            raise ModelError(f"{_name(attention)} has no plain weight behind its latents. {_REMEDY}")
        weight = weight if scales is None else scales
        generator = torch.Generator().manual_seed(0)
        sizes = latent_dim, rotated_dim
        latent, rotated = (torch.randn(size, generator=generator, device="cpu").to(weight) for size in sizes)
        keys, values = expanded(attention, latent[None, None, None], rotated[None, None, None])
        matrices = self.matrices()
        ours = torch.cat([matrices.keys @ latent, rotated.expand(self._heads, -1)], dim=-1)
        for made, said in ((keys, ours), (values, matrices.values @ latent)):
            found, bound = made[0, :, 0], _TOLERANCE * torch.finfo(weight.dtype).eps * said.float().norm()
            if found.shape != said.shape or bool((found.float() - said.float()).norm() > bound):
                raise _expands_otherwise(attention, weight.device)


def _numbers_of(attention: nn.Module) -> tuple[Tensor, Tensor | None]:
    """The weight by which a module expands latents, and its scales where it has 8 bits."""
    linear = getattr(attention, "kv_b_proj", None)
    if isinstance(linear, Int8Linear):
        return linear.levels, linear.scales
    return getattr(linear, "weight", None), None  # type: ignore[return-value]


def _by_head(vectors: Tensor, matrices: Tensor) -> Tensor:
    """vectors [R, Hq, Q, X] times matrices [Hq, X, Y]: one product per head, whatever the number of rows."""
    rows, heads, tokens, _ = vectors.shape
    together = vectors.transpose(0, 1).reshape(heads, rows * tokens, -1)
    return torch.bmm(together, matrices).view(heads, rows, tokens, -1).transpose(0, 1)


def _expands_otherwise(attention: nn.Module, device: torch.device) -> ModelError:
    said = f"{_name(attention)} does not expand latents as its weight alone would"
    if torch.is_autocast_enabled(device.type):
        return ModelError(f"{said} within torch.autocast; load the model in one dtype, and run it without autocast.")
    return ModelError(f"{said} (an adapter, a scaling?). {_REMEDY}")


def _name(attention: nn.Module) -> str:
    return f"{type(attention).__name__}.kv_b_proj"
