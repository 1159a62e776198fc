"""Synthetic retrieval tasks for evaluation, training and demonstrations."""

from winnow.tasks.document import KINDS, Document, Question, generate_document
from winnow.tasks.prompts import exact_match, format_prompt

__all__ = [
    "KINDS",
    "Document",
    "Question",
    "exact_match",
    "format_prompt",
    "generate_document",
]
