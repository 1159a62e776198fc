"""The part of a worked answer that states its result."""

from __future__ import annotations

import re

_NEXT_QUESTION = re.compile(r"\n\s*(?:Question|Problem|Q):")
_MARK = re.compile(r"####|answer\s+is\b\s*:?|answer\s*:", re.IGNORECASE)
_BOX = re.compile(r"\\f?boxed\s*(\{)?")


def own_part(answer: str) -> str:
    """An answer up to where the model begins to ask itself the next question, as base models do after examples."""
    return _NEXT_QUESTION.split(answer, maxsplit=1)[0]


def boxed(text: str) -> str | None:
    r"""Contents of the last \boxed{…}; None without one, or where its brace is not closed."""
    boxes = [content for match in _BOX.finditer(text) if (content := _content(text, match)) is not None]
    return boxes[-1] if boxes else None


def marked(text: str) -> str | None:
    """The text after the last "####", "the answer is" or "Answer:"; None without one that something follows."""
    after = [text[match.end() :] for match in _MARK.finditer(text)]
    return next((rest.strip() for rest in reversed(after) if rest.strip()), None)


def _content(text: str, box: re.Match[str]) -> str | None:
    if box[1] is None:
        # \boxed 5: what stands up to the next blank or sign of LaTeX.
        return re.match(r"[^\s$\\]*", text[box.end() :])[0] or None  # type: ignore[index]
    depth = 1
    for place in range(box.end(), len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if not depth:
            return text[box.end() : place]
    return None
