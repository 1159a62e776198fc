"""Marks in a text that comes piece by piece, and special tokens that are left out of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedTokenizerBase

_ALL = {"content": "text", "content_args": {"strip": False}}
"""All that a field has, in the words of transformers' response templates."""


class Mark:
    """Looks for a mark; text that may be the beginning of it is held back, as transformers' parser does."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, mark: Mapping[str, Any]) -> None:
        """mark: "open", a text or several, or "open_pattern", a regular expression."""
        self.found = ""
        """The mark, once it came."""
        self.behind: str | None = None
        """Text behind it, as far as it came with the mark; None before."""
        # A pattern may have groups, for which there must be something to do.
        fields = {"mark": {**mark, **_ALL, "transform": {"mark": "{content}"}}, "before": _ALL}
        self._parser = tokenizer.get_response_parser({"start_anchor": "?", "fields": fields}, prefix="")
        self._held = ""

    def add(self, text: str, end: bool) -> str:
        """Some more text, or the last of it; returns what is certain to stand before the mark."""
        events = self._parser.feed(text)
        if end:
            events += self._parser.finalize()[1]
        texts = {"before": "", "mark": ""}
        for each in events:
            if each["type"] == "region_chunk":
                texts[each["field"]] += each["text"]
        self._held = f"{self._held}{text}"[len(texts["before"]) :]
        if any(each["type"] == "region_open" and each["field"] == "mark" for each in events):
            self.behind = texts["mark"]
            self.found = self._held.removesuffix(self.behind)
        return texts["before"]


class Without:
    """Text that goes out as it came in, but without special tokens, which are known by their place."""

    def __init__(self) -> None:
        self._special: deque[tuple[int, int]] = deque()
        """First character and end of each that did not go out yet."""
        self._came = self._went = 0
        """Characters."""

    def came(self, text: str, special: bool) -> None:
        """Some more text, or a special token."""
        if special:
            self._special.append((self._came, self._came + len(text)))
        self._came += len(text)

    def went(self, text: str) -> str:
        """Text that goes out next; returns what of it is no special token."""
        begin, at = self._went, self._went
        self._went += len(text)
        words = ""
        while self._special and self._special[0][0] < self._went:
            first, end = self._special[0]
            words += text[at - begin : max(at, first) - begin]
            at = min(end, self._went)
            if end > self._went:
                break
            self._special.popleft()
        return words + text[at - begin :]

    def last(self) -> int:
        """Characters of the special token that came last; 0 where something came behind it, or none did."""
        first, end = self._special[-1] if self._special else (0, 0)
        return end - first if end == self._came else 0
