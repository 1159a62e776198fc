"""Answers on a terminal, word by word as they come."""

from __future__ import annotations

from rich.console import Console
from transformers import PreTrainedTokenizerBase, TextStreamer
from transformers.generation.streamers import BaseStreamer

from winnow.commands.answers import AnswerResult, print_end, print_start, print_text
from winnow.composition.method import Method


class AnswerStream(TextStreamer):
    """Prints the words of an answer, without the space around it; transformers finds where words end."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, console: Console) -> None:
        super().__init__(tokenizer, skip_special_tokens=True)
        self._console = console
        self._space = ""
        self._begun = False

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Prints a piece; space at its end waits for what comes after it."""
        piece = self._space + text if self._begun else text.lstrip()
        words = piece.rstrip()
        self._space = piece[len(words) :]
        if words:
            self._begun = True
            print_text(self._console, words)
            self._console.file.flush()


class AnswerPrinter:
    """Prints answers: on a terminal as their tokens come, elsewhere once they are whole."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, console: Console) -> None:
        self._tokenizer = tokenizer
        self._console = console
        self._open = False

    def begin(self, method: Method | None = None) -> BaseStreamer | None:
        """Takes the tokens of the next answer, on a terminal. method: named before it."""
        if not self._console.is_terminal:
            return None
        self._open = True
        print_start(self._console, method)
        return AnswerStream(self._tokenizer, self._console)

    def end(self, result: AnswerResult, method: Method | None = None) -> None:
        """Prints what is missing of the answer. method: as for its beginning."""
        if not self._open:
            print_start(self._console, method)
            print_text(self._console, result.answer.text)
        self._open = False
        print_end(self._console, result)

    def break_off(self) -> None:
        """Ends the line of an answer that was interrupted."""
        if self._open:
            self._console.print()
        self._open = False
