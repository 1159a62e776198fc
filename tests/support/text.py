"""Printed text, without its layout."""

from __future__ import annotations


def flat(text: str) -> str:
    """One line, its words a space apart."""
    return " ".join(text.split())
