"""Words shared with the right answer of a Chinese question; LongBench's qa_f1_zh_score (Bai et al. 2024)."""

from __future__ import annotations

import string

from winnow.metrics.chinese import cut
from winnow.metrics.several import best_of_several
from winnow.metrics.token_f1 import f1

# Chinese punctuation as LongBench has it: all but the opening 《, which counts as a word.
_CHINESE = (
    "！＂＃＄％＆＇（）＊＋，－／：；＜＝＞？＠［＼］＾＿｀｛｜｝～｟｠｡｢｣､"
    "、。〃》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏"
)
_DROPPED = str.maketrans("", "", string.punctuation + _CHINESE)


@best_of_several
def token_f1_zh(answer: str, right: str) -> float:
    """Harmonic mean of precision and recall over jieba's words; punctuation does not count."""
    return f1(_tokens(answer), _tokens(right))


def _tokens(text: str) -> list[str]:
    return [token for word in cut(text) if (token := "".join(word.lower().translate(_DROPPED).split()))]
