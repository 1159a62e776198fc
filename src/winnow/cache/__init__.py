"""The Hugging Face side: a cache whose full-attention layers are compressed after their prefill."""

from winnow.cache.attention import register
from winnow.cache.compressed import CompressedCache
from winnow.cache.context import Context, compress, load_context
from winnow.cache.graphed import GraphedDecoder
from winnow.cache.stats import CacheStats
from winnow.cache.while_graphed import step_graphs

register()

__all__ = ["CacheStats", "CompressedCache", "Context", "GraphedDecoder", "compress", "load_context", "step_graphs"]
