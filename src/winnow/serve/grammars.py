"""Grammars for answers, by llguidance: compiled once for many, and followed token by token."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from winnow.serve.refusals import Refused
from winnow.serve.rules import InexactError, Special
from winnow.serve.trials import check_affordable

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

KEPT = 8
"""Grammars that are kept for later requests with the same."""
LARGEST = 1 << 17
"""Characters of a grammar, at most."""
STATES = 50_000
"""States of a grammar's lexer, at most, of about 2 kB each. All other limits of llguidance's stay as they are."""


class Guide:
    """The way of one answer through a grammar."""

    def __init__(self, matcher: LLMatcher, ends: Tensor, field: str) -> None:
        self._matcher = matcher
        self._ends = ends
        self._field = field

    def allowed(self) -> Tensor:
        """[n] bools: which of the first n tokens may come next. Raises Refused where none may."""
        allowed = torch.frombuffer(bytearray(self._matcher.compute_logit_bias()), dtype=torch.uint8).bool()
        # Some tokens that end an answer are text to llguidance; and where nothing goes on, it lets an answer end.
        allowed[self._ends] = self._matcher.is_accepting()
        if not allowed.any():
            raise self._lost()
        return allowed

    def take(self, token: int) -> None:
        """Goes on behind a token. Raises Refused for one that may not come."""
        if not self._matcher.consume_token(token):
            raise self._lost()

    @property
    def complete(self) -> bool:
        """True if nothing may come but the end."""
        return self._matcher.is_stopped()

    def _lost(self) -> Refused:
        why = _plain(self._matcher.get_error()) or "no token goes on"
        return Refused(f"no answer can follow {self._field} to its end: {why}. Use a simpler schema.", self._field)


class Grammar:
    """A compiled grammar, for any number of answers."""

    def __init__(self, matcher: LLMatcher, ends: Tensor, field: str) -> None:
        """ends: tokens that end an answer. field: of the request, to blame where no answer can follow the grammar."""
        self._matcher = matcher
        self._ends = ends
        self._field = field

    def start(self) -> Guide:
        """The guide of one answer."""
        return Guide(self._matcher.deep_copy(), self._ends, self._field)


class Grammars:
    """Grammars over a model's tokens, for any thread. One is compiled at a time."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stops: frozenset[int]) -> None:
        """stops: tokens that end an answer."""
        self._tokenizer = tokenizer
        self._stops = stops
        self._lock = Lock()
        self._tokens: LLTokenizer | None = None
        self._kept: OrderedDict[tuple[str, str], Grammar] = OrderedDict()

    def compiled(self, grammar: Callable[[Special], str], field: str) -> Grammar:
        """A grammar, compiled. Raises Refused with the field of the request that it is made from."""
        with self._lock:
            if self._tokens is None:
                self._tokens = _read(self._tokenizer, self._stops, field)
            try:
                text = grammar(self._special(self._tokens))
            except InexactError as problem:
                raise Refused(f"{field} is not supported: {problem}.", field) from None
            found = self._kept.pop((field, text), None) or self._new(self._tokens, text, field)
            self._kept[field, text] = found
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return found

    def _special(self, tokens: LLTokenizer) -> Special:
        added = self._tokenizer.added_tokens_decoder.items()
        return {
            token.content: number
            for number, token in added
            if tokens.is_special_token(number) and number not in self._stops
        }

    def _new(self, tokens: LLTokenizer, text: str, field: str) -> Grammar:
        from llguidance import LLMatcher, LLParserLimits

        if len(text) > LARGEST:
            raise Refused(f"{field} is too large: {len(text):,} characters, where {LARGEST:,} are the most.", field)
        check_affordable(text, field)
        limits = LLParserLimits(max_lexer_states=STATES, verbose_errors=False)
        matcher = LLMatcher(tokens, text, log_level=0, limits=limits)
        if matcher.is_error():
            raise Refused(f"{field} is not supported: {_plain(matcher.get_error())}.", field)
        ends = torch.tensor(sorted({*self._stops, *tokens.eos_tokens}), dtype=torch.int64, device="cpu")
        made = Grammar(matcher, ends, field)
        made.start().allowed()  # raises here what would be raised behind the prompt
        return made


def _plain(error: str) -> str:
    """An error of llguidance's in one line."""
    return " ".join(error.removesuffix("<non-verbose/>").split())


def _read(tokenizer: PreTrainedTokenizerBase, stops: frozenset[int], field: str) -> LLTokenizer:
    """The tokens of a tokenizer, as llguidance takes them. Raises Refused."""
    try:
        from llguidance.hf import from_tokenizer
    except ModuleNotFoundError:
        raise Refused(
            f'{field} needs the package llguidance where the server runs: pip install "winnow-kv[serve]".', field
        ) from None
    try:
        return from_tokenizer(tokenizer, n_vocab=max([len(tokenizer), *(each + 1 for each in stops)]))
    except ValueError as problem:
        raise Refused(
            f"{field} is not supported for this model: llguidance cannot read its tokenizer ({problem}). Leave it out, "
            "or serve another model.",
            field,
        ) from None
