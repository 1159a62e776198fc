"""LongBench (Bai et al. 2023, arXiv 2308.14508): 21 tasks on long texts, in English, Chinese and code."""
