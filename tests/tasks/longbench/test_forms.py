"""Self-test of the converter: prompts are the official templates filled by str.format."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import pytest

from support.benchmark_files import longbench_row
from winnow.tasks.longbench.definition import CHINESE, ENGLISH, GROUPS, PLAIN_TEXT, TASKS, TEMPLATES, WITH_LENGTHS
from winnow.tasks.longbench.forms import Row, judging, kvpress, official

# First digits of SHA-256 of the templates in dataset2prompt.json of THUDM/LongBench.
HASHES = {
    "narrativeqa": "aada7ed24b06abac",
    "qasper": "0fbdd123fe7f83d6",
    "multifieldqa_en": "20b4666a2de8a1f7",
    "multifieldqa_zh": "344b3a4e557cd547",
    "hotpotqa": "9ec4ae308865bd0c",
    "2wikimqa": "9ec4ae308865bd0c",
    "musique": "9ec4ae308865bd0c",
    "dureader": "ae53329f51b17908",
    "gov_report": "91c25d585b189ced",
    "qmsum": "dca23b678fe0183b",
    "multi_news": "2af3f28c40b902e6",
    "vcsum": "3e5d8241bc9b512e",
    "trec": "0eff8bebdba99d91",
    "triviaqa": "00a802e6377e72fc",
    "samsum": "a68d884234907eef",
    "lsht": "f3edabdf7fae53d6",
    "passage_count": "986550b6c61009c6",
    "passage_retrieval_en": "39b96b7fa52bdd2a",
    "passage_retrieval_zh": "c1e2346e245eb365",
    "lcc": "6a1f24cf0bb83cd9",
    "repobench-p": "ee9ec182ea5ffeb7",
}
# First digits of SHA-256 of context, question and answer prefix of the row below, as kvpress' script divides them.
KVPRESS = {
    "narrativeqa": "e264541b2f571bdc",
    "qasper": "e6f0d7ca73cc5eb1",
    "multifieldqa_en": "ed0a004e00c29328",
    "multifieldqa_zh": "ed63d7725227a30a",
    "hotpotqa": "cb31f468238ee080",
    "2wikimqa": "cb31f468238ee080",
    "musique": "cb31f468238ee080",
    "dureader": "90383a4624de8d75",
    "gov_report": "a55e01d886553889",
    "qmsum": "ae573ec24aa26db3",
    "multi_news": "723729312a3ce294",
    "vcsum": "521daa01d3f0dc97",
    "trec": "192ff544919df3bd",
    "triviaqa": "834a4d48191f8797",
    "samsum": "413ca4bb194f7f36",
    "lsht": "14f1261ab8111e44",
    "passage_count": "b7a0f5c544d9893e",
    "passage_retrieval_en": "90f7e32d08bdbcff",
    "passage_retrieval_zh": "b7173eb7e2a4e147",
    "lcc": "e2191a9c95240d06",
    "repobench-p": "657b1ad1c9447b88",
}
# dataset2maxlen.json.
LONGEST = {
    32: {
        "hotpotqa",
        "2wikimqa",
        "musique",
        "triviaqa",
        "passage_count",
        "passage_retrieval_en",
        "passage_retrieval_zh",
    },
    64: {"multifieldqa_en", "multifieldqa_zh", "trec", "lsht", "lcc", "repobench-p"},
    128: {"narrativeqa", "qasper", "dureader", "samsum"},
    512: {"gov_report", "qmsum", "multi_news", "vcsum"},
}


def row(**changed: Any) -> Row:
    return Row(**longbench_row(**changed))


def test_templates_are_the_official_ones() -> None:
    assert {name: sha256(text.encode()).hexdigest()[:16] for name, text in TEMPLATES.items()} == HASHES
    assert list(TASKS) == list(TEMPLATES)


def test_lengths_of_answers_are_the_official_ones() -> None:
    found = {longest: {name for name in TASKS if judging(name).max_new_tokens == longest} for longest in LONGEST}
    assert found == LONGEST


@pytest.mark.parametrize("task", TASKS)
def test_prompts_are_the_template_filled_by_str_format(task: str) -> None:
    made = row(input="Type: {x}?\nType:")
    example = official(task, made)
    assert example.context + example.question == TEMPLATES[task].format(context=made.context, input=made.input)
    assert example.context.endswith(made.context)
    assert example.answer_prefix == ""
    assert example.answers == ("Anna", "Anna B.")
    assert example.name == "id0"
    assert example.facts == {"words": 3000, "words_range": "0-4k", "language": "en"}


@pytest.mark.parametrize("task", TASKS)
def test_kvpress_form_is_the_same_prompt_with_the_answer_begun(task: str) -> None:
    made = row(input="Question: {x}?\n" + TASKS[task].cue)
    example = kvpress(task, made)
    prompt = TEMPLATES[task].format(context=made.context, input=made.input)
    if task in PLAIN_TEXT:
        cue = TASKS[task].cue
        prompt = prompt.removesuffix(cue) + "\n" + cue
    assert example.context + example.question + example.answer_prefix == prompt
    assert example.answer_prefix == TASKS[task].cue


@pytest.mark.parametrize("task", TASKS)
def test_kvpress_form_is_divided_as_by_kvpress(task: str) -> None:
    begun = TASKS[task].cue if task in ("trec", "triviaqa", "samsum") else ""
    example = kvpress(task, row(input="" if task == "lcc" else "Question: {x}?\n" + begun))
    # kvpress puts the line break in itself where there is no chat template.
    question = example.question.removesuffix("\n") if task in PLAIN_TEXT else example.question
    divided = json.dumps([example.context, question, example.answer_prefix])
    assert sha256(divided.encode()).hexdigest()[:16] == KVPRESS[task]


def test_kvpress_form_keeps_instructions_with_the_context() -> None:
    qasper = kvpress("qasper", row())
    assert qasper.question == "Question: Who wrote {it} number 0?\n\n\n"
    assert qasper.context.endswith('"unanswerable". Do not provide any explanation.\n\n')
    assert kvpress("gov_report", row()).question == "Now, write a one-page summary of the report.\n\n"
    assert kvpress("vcsum", row()).question == ""
    trec = kvpress("trec", row(input="Question: How far?\nType:"))
    assert (trec.question, trec.answer_prefix) == ("Question: How far?\n\n", "Type:")
    assert kvpress("lcc", row(input="")).question == "\n"
    assert kvpress("passage_count", row()).answer_prefix == "The final answer is: "


def test_judging_follows_the_official_code() -> None:
    plain = {name for name in TASKS if not judging(name).chat_template}
    assert plain == {"trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p"}
    assert {name for name in TASKS if judging(name).first_line} == {"trec", "triviaqa", "samsum", "lsht"}
    assert judging("qasper", 20).max_new_tokens == 148
    by_metric = {
        name: judging(name).metric for name in ("qasper", "multifieldqa_zh", "dureader", "vcsum", "lcc", "trec")
    }
    assert list(by_metric.values()) == [
        *("token_f1", "token_f1_zh", "rouge_l_zh", "rouge_l_zh", "code_similarity", "classification")
    ]


def test_groups_are_those_of_the_tables() -> None:
    assert len(ENGLISH) == 16
    assert set(CHINESE) == {"multifieldqa_zh", "dureader", "vcsum", "lsht", "passage_retrieval_zh"}
    assert len(WITH_LENGTHS) == 13
    assert {task for name, tasks in GROUPS.items() if "tasks" not in name for task in tasks} == set(ENGLISH)


def test_lengths_fall_into_the_ranges_of_longbench_e() -> None:
    found = [official("qasper", row(length=words)).facts["words_range"] for words in (0, 3999, 4000, 7999, 8000)]
    assert found == ["0-4k", "0-4k", "4-8k", "4-8k", "8k+"]
