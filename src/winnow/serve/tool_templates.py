"""Chat templates and tools: the prompt with both, and how the model of a template writes calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from transformers import PreTrainedTokenizerBase

from winnow.serve.call_grammars import bare_grammar, marked_grammar
from winnow.serve.calls import CLOSE, MARKS, OPEN, Bare, Call, Form, Marked, Reader, call_in_marks, call_of
from winnow.serve.refusals import Refused
from winnow.serve.tools import Tool

_KEYS = {"probed_key": {"type": "string", "description": "A key."}}
_TOOL: Tool = {
    "type": "function",
    "function": {
        "name": "probed_tool",
        "description": "A tool.",
        "parameters": {"type": "object", "properties": _KEYS, "required": ["probed_key"]},
    },
}
_BARE = '{"name": "probed_call", "parameters": {"probed_key": "probed_value"}}'
_MARKED = re.compile(
    rf'{OPEN}\s*{{"name":\s*"probed_call",\s*"arguments":\s*{{"probed_key":\s*"probed_value"}}}}\s*{CLOSE}'
)
_ID = "probed123"
_CALL = {
    "id": _ID,
    "type": "function",
    "function": {"name": "probed_call", "arguments": {"probed_key": "probed_value"}},
}


def tool_text(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool]) -> str:
    """Messages as the chat template writes them with tools, ready for the next answer. Raises Refused."""
    try:
        # As in `winnow.evaluate.turns`, nobody is to think aloud.
        return str(
            tokenizer.apply_chat_template(
                list(messages),
                tools=list(tools) or None,
                tokenize=False,
                add_generation_prompt=True,
                enable_thinking=False,
            )
        )
    except Exception as problem:  # a program of the model's, over values that a request chose
        raise Refused(
            f"the chat template of this model cannot write this conversation with its tools: {problem}.",
            "tools" if tools and _can_write(tokenizer, messages) else "messages",
        ) from None


def _can_write(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, Any]]) -> bool:
    """True if messages can be written without tools."""
    try:
        tool_text(tokenizer, messages, ())
    except Refused:
        return False
    return True


def form_of(tokenizer: PreTrainedTokenizerBase, tools: Sequence[Tool]) -> Form | None:
    """The way in which calls of tools are written; None where there are no tools to call.

    Raises Refused for a template that leaves tools, calls or their results out, and one whose calls are not known.
    """
    written = _probed(tokenizer, tools, {"content": "", "tool_calls": [_CALL]})
    wanted = ("probed_call", "probed_result", *(("probed_tool",) if tools else ()))
    field = "tools" if tools else "messages"
    if not all(word in written for word in wanted):
        raise Refused(
            "the chat template of this model has no place for tools, their calls or their results; leave them out, or "
            "serve a model whose template has one.",
            field,
        )
    if not tools:
        return None
    declared = _declared(tokenizer)
    reader: Callable[[], Reader]
    grammar = None
    if declared is not None:
        reader = partial(Marked, tokenizer, declared, _reads(tokenizer, declared, tools))
    elif _MARKED.search(written):
        reader = partial(Marked, tokenizer, MARKS, call_in_marks, OPEN)
        grammar = marked_grammar
    elif written == _probed(tokenizer, tools, {"content": _BARE}):
        reader = partial(Bare, [each["function"]["name"] for each in tools])
        grammar = bare_grammar
    else:
        raise Refused(
            "winnow cannot read the tool calls that the chat template of this model writes; leave tools out, or give "
            "its tokenizer_config.json a response_template with tool_calls.",
            field,
        )
    special = frozenset(token for token, each in tokenizer.added_tokens_decoder.items() if each.special)
    return Form(reader, special, grammar)


def _probed(tokenizer: PreTrainedTokenizerBase, tools: Sequence[Tool], answer: Mapping[str, Any]) -> str:
    """A conversation with an answer, as the template writes it; empty where it does not."""
    result = {"role": "tool", "tool_call_id": _ID, "name": "probed_call", "content": "probed_result"}
    asked = {"role": "user", "content": "Call it."}
    try:
        return tool_text(tokenizer, [asked, {"role": "assistant", **answer}, result], [_TOOL] if tools else [])
    except Refused:
        return ""


def _declared(tokenizer: PreTrainedTokenizerBase) -> Mapping[str, Any] | None:
    """The tool calls of a tokenizer's response template, which newer models bring; None where there are none."""
    template = getattr(tokenizer, "response_template", None) or {}
    found: Mapping[str, Any] = template.get("fields", {}).get("tool_calls", {})
    return found if "open" in found or "open_pattern" in found else None


def _reads(
    tokenizer: PreTrainedTokenizerBase, declared: Mapping[str, Any], tools: Sequence[Tool]
) -> Callable[[str], Sequence[Call]]:
    """A reader of texts from mark to mark, by transformers."""
    template = {"start_anchor": "?", "fields": {"tool_calls": declared}}

    def read(marked: str) -> Sequence[Call]:
        found = tokenizer.parse_response(marked, template, prefix="", tools=list(tools)).get("tool_calls")
        nested = found if isinstance(found, list) else [found]
        flat = [each for one in nested for each in (one if isinstance(one, list) else [one])]
        return [call_of(each.get("function") if isinstance(each, dict) else None) for each in flat]

    return read
