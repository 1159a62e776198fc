"""Benchmarks and their protocols; generated documents whose facts can be asked for."""

from winnow.tasks.document import QUESTION_KINDS, Document, Question, generate_document, read_questions
from winnow.tasks.prompts import format_prompt, lead_in

__all__ = [
    "QUESTION_KINDS",
    "Document",
    "Question",
    "format_prompt",
    "generate_document",
    "lead_in",
    "read_questions",
]
