"""Requests that are not answered, in the form in which OpenAI's clients expect to be told."""

from __future__ import annotations

from typing import Any


class Refused(Exception):
    """A request that cannot be answered: HTTP status, message, and the field that is to blame."""

    def __init__(self, message: str, field: str | None = None, status: int = 400, code: str | None = None) -> None:
        super().__init__(written(message))
        self.field = None if field is None else written(field)
        self.status = status
        self.code = code

    def body(self) -> dict[str, Any]:
        """The JSON that tells of it."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.field, "code": self.code}}


LONGEST = 1000
"""Characters of what is said about a request, at most: it may repeat what the request says."""


def written(text: str) -> str:
    """A text that UTF-8 can write, cut where it is long: halves of surrogate pairs are spelled out."""
    cut = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
    return cut.encode("utf-8", "backslashreplace").decode("utf-8")
