"""LongBench's tasks as its code defines them: templates, longest answers, metrics, and the groups of its tables.

Templates, lengths and metrics are those of the files dataset2prompt.json, dataset2maxlen.json and eval.py of
THUDM/LongBench (MIT license), mistakes of spelling included: they are part of what models are given.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

TEMPLATES: dict[str, str] = json.loads(Path(__file__).with_name("templates.json").read_text(encoding="utf-8"))
"""Prompts by task, with places for {context} and {input}."""


class Definition(NamedTuple):
    """A task."""

    summary: str
    metric: str
    max_new_tokens: int
    question: str
    """The beginning of what kvpress' form of the data takes for the question."""
    cue: str
    """The end of the prompt that kvpress' form takes for the beginning of the answer."""


_ASKED = "Question: {input}"
_ASKED_ZH = "问题：{input}"

TASKS = {
    "narrativeqa": Definition("questions about a book or a film script", "token_f1", 128, _ASKED, "Answer:"),
    "qasper": Definition("questions about a scientific article", "token_f1", 128, _ASKED, "Answer:"),
    "multifieldqa_en": Definition("questions about an article of some field", "token_f1", 64, _ASKED, "Answer:"),
    "multifieldqa_zh": Definition("the same in Chinese", "token_f1_zh", 64, _ASKED_ZH, "回答："),
    "hotpotqa": Definition("questions that need two passages of several", "token_f1", 32, _ASKED, "Answer:"),
    "2wikimqa": Definition("questions that need up to five passages", "token_f1", 32, _ASKED, "Answer:"),
    "musique": Definition("questions that need up to four passages", "token_f1", 32, _ASKED, "Answer:"),
    "dureader": Definition("Chinese questions on several passages", "rouge_l_zh", 128, _ASKED_ZH, "回答："),
    "gov_report": Definition("summary of a government report", "rouge_l", 512, "Now, write a", "Summary:"),
    "qmsum": Definition("summary of a meeting as a query asks", "rouge_l", 512, "Query: {input}", "Answer:"),
    "multi_news": Definition("summary of several news articles", "rouge_l", 512, "Now, write a", "Summary:"),
    "vcsum": Definition("summary of a Chinese meeting", "rouge_l_zh", 512, "会议总结：", "会议总结："),
    "trec": Definition("class of a question, by examples", "classification", 64, "{input}", "Type:"),
    "triviaqa": Definition("question about a passage, by examples", "token_f1", 32, "{input}", "Answer:"),
    "samsum": Definition("summary of a conversation, by examples", "rouge_l", 128, "{input}", "Summary:"),
    "lsht": Definition("class of Chinese news, by examples", "classification", 64, "{input}", ""),
    "passage_count": Definition(
        "number of different passages", "count", 32, "Please enter the final", "The final answer is: "
    ),
    "passage_retrieval_en": Definition(
        "number of the passage that was summarized", "retrieval", 32, "{input}", "The answer is: "
    ),
    "passage_retrieval_zh": Definition("the same in Chinese", "retrieval_zh", 32, "{input}", "答案是："),
    "lcc": Definition("next line of a program", "code_similarity", 64, "Next line of", "Next line of code:\n"),
    "repobench-p": Definition(
        "next line of a file of a repository", "code_similarity", 64, "{input}", "Next line of code:\n"
    ),
}

PLAIN_TEXT = ("trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p")
"""Put to every model without a chat template."""

FIRST_LINE = ("trec", "triviaqa", "samsum", "lsht")
"""Only the first line of an answer is judged."""

ENGLISH = tuple(name for name in TASKS if not name.endswith("_zh") and name not in ("dureader", "vcsum", "lsht"))
CHINESE = tuple(name for name in TASKS if name not in ENGLISH)

WITH_LENGTHS = (
    *("qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "gov_report", "multi_news", "trec", "triviaqa", "samsum"),
    *("passage_count", "passage_retrieval_en", "lcc", "repobench-p"),
)
"""Tasks of LongBench-E, which has as many examples of each range of lengths."""

GROUPS = {
    "single-document QA": ("narrativeqa", "qasper", "multifieldqa_en"),
    "multi-document QA": ("hotpotqa", "2wikimqa", "musique"),
    "summarization": ("gov_report", "qmsum", "multi_news"),
    "few-shot learning": ("trec", "triviaqa", "samsum"),
    "synthetic": ("passage_count", "passage_retrieval_en"),
    "code": ("lcc", "repobench-p"),
    "QA, six tasks": ("narrativeqa", "qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "musique"),
    "English, sixteen tasks": ENGLISH,
    "Chinese, five tasks": CHINESE,
}
"""Means of the tables of LongBench, HeadKV, CoKV, K-VEC and SPARK."""
