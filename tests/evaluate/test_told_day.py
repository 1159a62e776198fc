"""Chat templates that tell a day: any that is wanted, in whatever form they write it."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from winnow.bundled import MODEL_PATH
from winnow.evaluate.told_day import telling, tells_day
from winnow.evaluate.turns import chat_text, on_one_day
from winnow.tasks.prompt_style import USUAL, PromptStyle

LLAMA = """\
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{{- "Today Date: " + date_string + "\\n" }}
{%- for m in messages %}{{ m.content }}{% endfor %}"""
"""Llama 3.2's way to the day."""
WITHIN = """\
{%- macro head() -%}Current date: {{ strftime_now('%Y-%m-%d') }}{%- endmacro -%}
{{- head() -}}{%- for m in messages -%}<{{ m.content }}>{%- endfor -%}"""
"""A template that asks for the day in a macro, as gpt-oss' does."""
FORMATS = ["%d %b %Y", "%Y-%m-%d", "%-d %B %Y", "%A, %d/%m/%y %H:%M", "%j of %G-W%V %%", "100%", ""]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(MODEL_PATH)


def written(tokenizer, template, day):
    tokenizer.chat_template = template
    return chat_text(tokenizer, [{"role": "user", "content": "Well?"}], day)


def test_templates_tell_the_wanted_day(tokenizer):
    assert written(tokenizer, LLAMA, "2025-02-03") == "Today Date: 03 Feb 2025\nWell?"
    assert written(tokenizer, WITHIN, "2025-02-03") == "Current date: 2025-02-03<Well?>"
    assert written(tokenizer, LLAMA, None) == f"Today Date: {datetime.now():%d %b %Y}\nWell?"


@settings(max_examples=20, deadline=None)
@given(day=st.dates(min_value=datetime(1000, 1, 1).date()))
def test_days_are_written_as_python_writes_them(tokenizer, day):
    forms = FORMATS[:-2]
    found = written(tokenizer, "\n".join("{{ strftime_now('" + form + "') }}" for form in forms), day.isoformat())
    assert found.splitlines() == [datetime(day.year, day.month, day.day).strftime(form) for form in forms]


@pytest.mark.parametrize("form", FORMATS[-2:])
def test_what_is_no_code_stays(tokenizer, form):
    assert written(tokenizer, "{{ strftime_now('" + form + "') }}", "2025-02-03") == form


def test_one_of_several_templates_is_the_usual_one(tokenizer):
    several = {"default": LLAMA, "tool_use": WITHIN}
    assert tells_day(several)
    assert written(tokenizer, several, "2025-02-03").startswith("Today Date: 03 Feb 2025")


def test_a_template_without_a_day_writes_what_it_did(tokenizer):
    plain = "\n {% for m in messages %}\n{{ m.content }}\n{% endfor %}\n"
    assert not tells_day(plain)
    assert written(tokenizer, plain, None) == written(tokenizer, telling(plain, "2025-02-03"), None)


def test_only_prompts_that_tell_a_day_get_one(tokenizer):
    tokenizer.chat_template = LLAMA
    assert on_one_day(tokenizer, USUAL, "2025-02-03").day == "2025-02-03"
    assert on_one_day(tokenizer, PromptStyle(day="2024-01-01"), "2025-02-03").day == "2024-01-01"
    assert on_one_day(tokenizer, PromptStyle(chat_template=False), "2025-02-03").day is None
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert on_one_day(tokenizer, USUAL, "2025-02-03") == USUAL
