"""Sliced Shapley values of KV heads (CoKV, arXiv 2502.17501): the worth of each to the others."""
