"""Head scores from needles in haystacks, as HeadKV estimates them (Fu et al. 2024, arXiv 2410.19258)."""
