"""Tools, chat templates that have them, and a tokenizer that spells everything."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

END = "<|im_end|>"
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    },
}

_BEGIN = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
_RESULT = "{% if m.role == 'tool' %}{{ '<result>' + m.content + '</result>' }}{% else %}{{ m.content }}{% endif %}"
_LAST = "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
_OFFERED = "{% if tools %}{{ '<|im_start|>system\nTools: ' + tools | tojson + '<|im_end|>\n' }}{% endif %}"


def _template(called: str) -> str:
    return f"{_OFFERED}{_BEGIN}{_RESULT}{{% for c in m.tool_calls %}}{called}{{% endfor %}}{_LAST}"


PLAIN = f"{_BEGIN}{_RESULT}{_LAST}"
"""A chat template that knows nothing of tools."""
HERMES = _template(
    "{{ ('\n' if m.content or not loop.first else '') + '<tool_call>\n{\"name\": \"' + c.function.name + "
    "'\", \"arguments\": ' + c.function.arguments | tojson + '}\n</tool_call>' }}"
)
LLAMA = _template(
    "{{ '{\"name\": \"' + c.function.name + '\", \"parameters\": ' + c.function.arguments | tojson + '}' }}"
)
DECLARED = _template(
    "{{ '<|call|>' + c.function.name }}{% for key, value in c.function.arguments | items %}"
    "{{ ' ' + key + '=' + value | string }}{% endfor %}{{ '<|called|>' }}"
)
"""Calls as only a response template tells."""
RESPONSES = {
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            "open_pattern": r"\s*<\|call\|>(?P<name>\w+)",
            "close_pattern": r"<\|called\|>\s*",
            "repeats": True,
            "content": "xml-inline",
            "content_args": {"tag_pattern": r"(?P<key>\w+)=(?P<value>\S+)"},
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {"content": "text"},
    },
}
OTHER = _template("{{ '[CALL]' + c.function.name + c.function.arguments | tojson }}")
"""Calls of no form that is known."""


def speller(
    template: str | None = HERMES, responses: object = None, pieces: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """A tokenizer like GPT-2's in which every byte is a token, besides a few special ones.

    pieces: tokens of several ASCII letters, which it never writes but a model may say.
    """
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *pieces]
    made = Tokenizer(models.BPE({each: place for place, each in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(
        [AddedToken(each, special=True) for each in (END, "<|im_start|>", "<|call|>", "<|called|>")]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END)
    tokenizer.chat_template = template
    tokenizer.response_template = responses
    return tokenizer


def call_text(city: str = "Rome", name: str = "weather", **more: object) -> str:
    """A call as Hermes and Qwen write it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': {'city': city, **more}})}\n</tool_call>"


def asked_with_tools(content: str = "Hot?", **more: object) -> dict[str, object]:
    """A request with a tool."""
    return {"messages": [{"role": "user", "content": content}], "tools": [TOOL], **more}
