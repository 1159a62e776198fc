"""One of the answers to a request, as its client hears it: words, and calls of tools as soon as they are whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from winnow.serve.asked import Finished, Reason
from winnow.serve.calls import Call, Form, Part
from winnow.serve.words import Trimmed

Ending = Reason | Literal["tool_calls"]


class Heard:
    """An answer, as far as it was said."""

    def __init__(self, form: Form | None, one_call: bool = False) -> None:
        """form: of calls; None for an answer that is all text. one_call: leave out all calls but the first."""
        self.text = ""
        self.calls: list[Call] = []
        self._reader = None if form is None else form.reader()
        self._one_call = one_call
        self._trimmed = Trimmed()

    def add(self, text: str, special: bool = False) -> list[Part]:
        """Some more text; returns what is certain now. special: it is a special token, and no word."""
        if self._reader is None:
            self.text += text
            return [text]
        return self._certain(self._reader.add(text, special))

    def end(self, cut: bool = False) -> list[Part]:
        """No text comes any more; returns what was held back. cut: the model did not end the answer itself."""
        return [] if self._reader is None else self._certain(self._reader.end(cut))

    def ending(self, finished: Finished) -> Ending:
        """The reason for which the answer is whole, as OpenAI names it."""
        return "tool_calls" if self.calls and finished.reason == "stop" else finished.reason

    def _certain(self, parts: Sequence[Part]) -> list[Part]:
        told: list[Part] = []
        for part in parts:
            if isinstance(part, str):
                told += self._words(part)
                continue
            self._trimmed.part()
            if not (self.calls and self._one_call):
                self.calls.append(part)
                told.append(part)
        return told

    def _words(self, text: str) -> list[str]:
        """Text beside calls, as it would be without them."""
        words = self._trimmed.add(text)
        self.text += words
        return [words] if words else []
