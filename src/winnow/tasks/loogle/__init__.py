"""LooGLE (Li et al. 2023, arXiv 2311.04939): questions on documents of more than 24k tokens, and their summaries."""
