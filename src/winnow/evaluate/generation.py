"""Questions about a text, answered by `model.generate` from compressed caches, in one call."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias, overload

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation import BaseStreamer, LogitsProcessorList, TextStreamer

from winnow.budget import DEFAULT_BUDGET
from winnow.cache.attending import attending
from winnow.cache.compressed import CompressedCache
from winnow.cache.fold import check_foldable
from winnow.cache.guards import is_count, optional_count
from winnow.cache.left_out import check_taken_up
from winnow.cache.older_code import taking_new_name
from winnow.cache.replay import Words, words_in
from winnow.cache.while_graphed import step_graphs
from winnow.composition.method import Method
from winnow.composition.names import NamedMethod, as_method
from winnow.errors import MethodError, PromptError
from winnow.evaluate.answer_reader import looks_ahead
from winnow.evaluate.answer_settings import CANDIDATES, MAX_NEW_TOKENS, AnswerSettings, answer_settings
from winnow.evaluate.answering import Answer, compress_document
from winnow.evaluate.candidate_loop import CandidateLoop
from winnow.evaluate.checking import check_shapes
from winnow.evaluate.decoding import clock, prefill, stop_tokens
from winnow.evaluate.lookup import MOST
from winnow.evaluate.prompts import document_tokens, encode_prompt
from winnow.evaluate.shared_start import is_worth_sharing, queries_alone, shared_start
from winnow.evaluate.truncation import without_middle
from winnow.models import answer_room, context_length
from winnow.models.adapters import check_prompt_learning
from winnow.models.cache_argument import generation_name
from winnow.models.devices import input_device
from winnow.tasks.prompt_style import USUAL, PromptStyle

Streamer: TypeAlias = BaseStreamer | Callable[[str], object]


@overload
def generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    context: str,
    questions: str,
    *,
    method: Method | str = ...,
    budget: int | str | None = ...,
    question_aware: bool = ...,
    max_new_tokens: int | None = ...,
    generation_config: GenerationConfig | None = ...,
    streamer: Streamer | None = ...,
    chunk_size: int | None = ...,
    fold_every: int | None = ...,
    lookup: int = ...,
    system: str | None = ...,
    style: PromptStyle = ...,
    truncate: Literal["middle"] | None = ...,
) -> Answer: ...
@overload
def generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    context: str,
    questions: list[str],
    *,
    method: Method | str = ...,
    budget: int | str | None = ...,
    question_aware: bool = ...,
    max_new_tokens: int | None = ...,
    generation_config: GenerationConfig | None = ...,
    streamer: Streamer | None = ...,
    chunk_size: int | None = ...,
    fold_every: int | None = ...,
    lookup: int = ...,
    system: str | None = ...,
    style: PromptStyle = ...,
    truncate: Literal["middle"] | None = ...,
) -> list[Answer]: ...
def generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    context: str,
    questions: str | list[str],
    *,
    method: Method | str = "adakv",
    budget: int | str | None = None,
    question_aware: bool = True,
    max_new_tokens: int | None = None,
    generation_config: GenerationConfig | None = None,
    streamer: Streamer | None = None,
    chunk_size: int | None = None,
    fold_every: int | None = None,
    lookup: int = MOST,
    system: str | None = None,
    style: PromptStyle = USUAL,
    truncate: Literal["middle"] | None = None,
) -> Answer | list[Answer]:
    """Answers questions about a text with `model.generate`, each from its own compressed cache.

    The prompt follows the tokenizer's chat template if it has one (one user message: text, blank line, question), and
    is plain text otherwise. The model's attention implementation is "winnow" during the call and is restored
    afterwards.

    Args:
        model: any model that `CompressedCache` takes.
        tokenizer: the model's tokenizer.
        context: the text that the questions are about.
        questions: one question, which returns one `Answer`, or a list, which returns a list in the same order.
        method: a name ("adakv"), a name with a budget ("adakv @ 2%"), or the result of `winnow.method(...)`.
        budget: slots per KV head (128), a share of the prompt ("2%") or bytes ("64MiB"). Default: the method's own
            budget, or 128.
        question_aware: compress text and question together, so that the cache keeps what the question needs. This gives
            the better answers. The text is read once for all questions if half of the free memory has room for its
            dense cache twice, otherwise once for each question. False: compress the text once, before any question is
            known, and answer every question from it. Methods that watch the end of the prompt (SnapKV and similar ones)
            then lose much; methods that look only at keys, such as keydiff, do not; kvzip is made for this.
        max_new_tokens: the most tokens of an answer. Default: the value in generation_config (whose `max_length`
            includes the prompt), or 128. Never more than the model can read.
        generation_config: sampling, stop strings and other settings of transformers. Beams and several sequences need
            `model.generate` itself; candidates (`prompt_lookup_num_tokens`) need a prompt that is read in one pass.
            None: greedy decoding, among the tokens that the model's own settings allow. Call `torch.manual_seed` to
            make samples repeatable.
        streamer: a streamer of transformers, or a function that gets every piece of text as soon as it is final. The
            answers to several questions are streamed one after another.
        chunk_size: number of tokens of the text to prefill at a time; see `winnow.compress`. Default: the
            `prefill_chunk_size` of generation_config.
        fold_every: compress the answer, too, whenever it has grown by this many tokens; see `CompressedCache`.
        lookup: on a CPU, look up in prompt and answer what came after the last tokens before, and check up to so many
            such candidates in one pass. The answer is the same up to rounding. 0: one token at a time, as with stop
            strings and with candidates of generation_config.
        system: instructions for the model, before the text.
        style: the form of the prompt: without a chat template, or with your own template (`winnow.PromptStyle`).
        truncate: "middle" drops the middle of a text that is too long for the model; None raises an error.

    Raises:
        TypeError: the tokenizer is given in place of the model.
        PromptError: the text or a question is empty, or there is no question; the prompt is longer than the model can
            read or max_length allows; lookup is no number of tokens; generation_config asks for beams, several
            sequences or anything else that one answer from a compressed cache cannot have; the chat template has no
            place for `system`; or `system` is given twice. It is raised before anything is computed.
        MethodError: the method or a parameter is unknown, or the budget is given twice.
        BudgetError, CacheError, ModelError: as for `CompressedCache` and `winnow.compress`.
    """
    # Not the reverse: a compiled or wrapped model is no PreTrainedModel.
    if isinstance(model, PreTrainedTokenizerBase):
        raise TypeError("winnow.generate takes the model first and its tokenizer second; swap them.")
    check_prompt_learning(model)
    single = isinstance(questions, str)
    asked = _checked(context, [questions] if isinstance(questions, str) else questions)
    chosen = _chosen(method, budget)
    if fold_every is not None:
        check_foldable(chosen, fold_every)
    if not (lookup == 0 or is_count(lookup)):
        raise PromptError(f"lookup is {lookup!r}; give the number of tokens to check at a time, or 0 for none.")
    settings = answer_settings(model, tokenizer, generation_config, max_new_tokens)
    chunk_size = _chunk_size(chunk_size, settings)
    style = _style(style, system)
    reading = _Reading(chosen, chunk_size, fold_every, words_in(tokenizer, style.chat_template))
    if not question_aware:
        style.check_question_last()
    texts = [context] * len(asked)
    if (most := _room(model, truncate, settings.max_new_tokens or MAX_NEW_TOKENS)) is not None:
        # Read before any question, the text must be the same for all of them.
        groups = [[question] for question in asked] if question_aware else [asked] * len(asked)
        texts = [without_middle(tokenizer, context, group, most, style) for group in groups]
    prompts = [encode_prompt(tokenizer, *each, style) for each in zip(texts, asked, strict=True)]
    lengths = [prompt.shape[1] for prompt in prompts]
    _check_lengths(model, settings, lengths)
    _check_candidates(settings, reading, lengths, question_aware)
    check_shapes(model, [chosen], lengths, fold_every)
    writing = _Writing(model, tokenizer, settings, _streamer(streamer, tokenizer), lookup)
    with attending(model):
        begun = (
            _with_question(model, prompts, reading, _shares(model, prompts, reading, settings))
            if question_aware
            else _before_questions(model, prompts, reading, document_tokens(tokenizer, texts[0], prompts, style))
        )
        answers = [writing.answer(each) for each in begun]
    return answers[0] if single else answers


class _Reading(NamedTuple):
    """The way that prompts are read and compressed."""

    method: Method
    chunk_size: int | None
    fold_every: int | None
    words: Words
    """Those around a prompt, for methods that have it read a second time."""

    @property
    def rereads(self) -> bool:
        """True for a method that has a prompt read a second time."""
        return self.method.scorer.replayer is not None

    def early(self, tokens: int) -> int:
        """First of so many tokens, of a prompt or of what it has behind a shared start, that come before
        `model.generate`.

        The last ones are left for that, which needs logits to begin with.
        """
        if self.rereads:
            return tokens - 1
        chunk = self.chunk_size or tokens
        return (tokens - 1) // chunk * chunk


class _Begun(NamedTuple):
    """A prompt [1, N], of which a cache has seen the first tokens, but not all."""

    prompt: Tensor
    cache: CompressedCache
    seconds: float
    """Spent on those."""
    question_seen: bool


def _shares(model: PreTrainedModel, prompts: list[Tensor], reading: _Reading, settings: AnswerSettings) -> bool:
    """True where what prompts begin with is read once: not before candidates, nor what is read a second time."""
    if reading.rereads or _candidates(settings) is not None:
        return False
    return is_worth_sharing(model, prompts, lambda tokens: queries_alone(reading.method, tokens, reading.fold_every))


def _with_question(model: PreTrainedModel, prompts: list[Tensor], reading: _Reading, shares: bool) -> Iterator[_Begun]:
    """Caches that see text and question together."""
    method, chunk_size, fold_every = reading.method, reading.chunk_size, reading.fold_every
    start = shared_start(model, prompts, method, chunk_size, fold_every) if shares else None
    for prompt in prompts:
        begin, length = clock(model), prompt.shape[1]
        if reading.rereads:
            yield next(_before_questions(model, [prompt], reading, length - 1))._replace(question_seen=True)
            continue
        if start is None:
            seen, before, cache = 0, 0.0, CompressedCache(model, method, prompt_length=length, fold_every=fold_every)
        else:
            seen, before, cache = start.tokens, start.seconds, start.fork(prompt)
        if early := reading.early(length - seen):
            prefill(model, prompt[:, seen : seen + early], cache, chunk_size)
        yield _Begun(prompt, cache, before + clock(model) - begin, question_seen=True)


def _before_questions(
    model: PreTrainedModel, prompts: list[Tensor], reading: _Reading, length: int
) -> Iterator[_Begun]:
    """Forks of the first `length` tokens, which all prompts share, compressed once."""
    tokens = prompts[0][:, :length]
    document = compress_document(model, reading.method, tokens, reading.chunk_size, reading.fold_every, reading.words)
    for prompt in prompts:
        yield _Begun(prompt, document.context.cache(), document.seconds, question_seen=False)


@dataclass(frozen=True)
class _Writing:
    """The way that answers are written."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    settings: AnswerSettings
    streamer: BaseStreamer | None
    lookup: int
    """Candidates at a time, at most."""

    def answer(self, begun: _Begun) -> Answer:
        """The answer to a prompt."""
        model, cache, length = self.model, begun.cache, begun.prompt.shape[1]
        first, begin = _FirstToken(model, cache, length), clock(model)
        prompt = begun.prompt.to(input_device(model))
        settings = self._limited(length)
        with taking_new_name(model), step_graphs(model, settings.max_new_tokens):
            output = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                **{generation_name(): cache},
                generation_config=settings,
                logits_processor=LogitsProcessorList([first]),
                streamer=self.streamer,
                tokenizer=self.tokenizer,  # for stop strings
                custom_generate=CandidateLoop(cache, self.lookup, self.streamer) if self._has_candidates() else None,
            )
        check_taken_up(cache.get_seq_length(), length)
        seconds, stats = clock(model) - first.seconds, cache.stats()
        tokens = self._without_stop(output[0, length:].tolist())
        return Answer(
            text=str(self.tokenizer.decode(tokens, skip_special_tokens=True)).strip(),
            method=cache.method,
            question_seen=begun.question_seen,
            prompt_tokens=length,
            new_tokens=len(tokens),
            prefill_seconds=begun.seconds + first.seconds - begin,
            compress_seconds=stats.compress_seconds,
            decode_seconds=seconds,
            decode_steps=stats.tokens_seen - length,
            stats=stats,
        )

    def _has_candidates(self) -> bool:
        """True where candidates are to be looked up: not for stop strings, which transformers finds in its own loop."""
        found = (each.stop_strings for each in (self.settings, self.model.generation_config) if each is not None)
        usual = _candidates(self.settings) is None and not any(found)
        return usual and self.lookup > 0 and looks_ahead(self.model)

    def _limited(self, length: int) -> AnswerSettings:
        """The settings for a prompt of so many tokens."""
        settings = copy.deepcopy(self.settings)
        most = settings.max_new_tokens or settings.max_length - length
        settings.max_new_tokens, settings.max_length = answer_room(self.model.config, length, most), None
        return settings

    def _without_stop(self, tokens: list[int]) -> list[int]:
        own = self.settings.eos_token_id
        stops = stop_tokens(self.model) if own is None else {own} if isinstance(own, int) else set(own)
        return tokens[:-1] if tokens and tokens[-1] in stops else tokens


class _FirstToken(LogitsProcessor):  # type: ignore[misc]
    """Notes when the logits of an answer's first token are there, after a prompt of so many tokens."""

    def __init__(self, model: PreTrainedModel, cache: CompressedCache, length: int) -> None:
        self._model = model
        self._cache = cache
        self._length = length
        self._seconds: float | None = None

    @property
    def seconds(self) -> float:
        """The moment, on `clock`."""
        assert self._seconds is not None
        return self._seconds

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores as they are."""
        # Logits of candidates come before the prompt is read.
        if self._seconds is None and self._cache.get_seq_length() >= self._length:
            self._seconds = clock(self._model)
        return scores


class _Pieces(TextStreamer):  # type: ignore[misc]
    """Text for a function, as soon as no later token can change it."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, receive: Callable[[str], object]) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self._receive = receive

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """As `TextStreamer` calls it."""
        if text:
            self._receive(text)


def _streamer(given: Streamer | None, tokenizer: PreTrainedTokenizerBase) -> BaseStreamer | None:
    return given if given is None or isinstance(given, BaseStreamer) else _Pieces(tokenizer, given)


def _checked(context: str, questions: list[str]) -> list[str]:
    """The questions. Raises PromptError where one of them, or the text, has nothing in it."""
    if not isinstance(context, str) or not context.strip():
        raise PromptError("the context is empty; give the text that the questions are about as a non-empty str.")
    if not questions:
        raise PromptError("there is no question; give one, or a list of them.")
    for number, question in enumerate(questions, start=1):
        if not isinstance(question, str) or not question.strip():
            which = "the question" if len(questions) == 1 else f"question {number} of {len(questions)}"
            raise PromptError(f"{which} is empty; give a non-empty str.")
    return questions


def _chosen(method: Method | str, budget: int | str | None) -> Method:
    """A method with its own budget, a given one, or the default one."""
    if not isinstance(method, str):
        if budget is not None:
            raise MethodError(f"The budget is given twice, in {str(method)!r} and as {budget!r}; keep one.")
        return as_method(method)
    named = NamedMethod(method)
    unsaid = budget is None and named.budget is None and named.takes_budget
    return named.method(DEFAULT_BUDGET if unsaid else budget)


def _style(style: PromptStyle, system: str | None) -> PromptStyle:
    if system is None:
        return style
    if style.system is not None:
        raise PromptError("the system prompt is given twice, as system and in style; keep one.")
    return replace(style, system=system)


def _room(model: PreTrainedModel, truncate: str | None, max_new_tokens: int) -> int | None:
    """Tokens that a prompt may have before its middle is left out; None: any number."""
    if truncate not in (None, "middle"):
        raise PromptError(f'truncate is {truncate!r}; give "middle", or None to refuse what is too long.')
    most = context_length(model.config)
    return None if truncate is None or most is None else most - min(max_new_tokens, most // 2)


def _chunk_size(given: int | None, settings: AnswerSettings) -> int | None:
    """Tokens prefilled at a time, as given or as the settings ask for, which are done with it.

    `model.generate` would not read in pieces what is read before it is called. With candidates there are none.
    """
    asked, settings.prefill_chunk_size = settings.prefill_chunk_size, None
    if given is None and _candidates(settings) is None:
        return optional_count("prefill_chunk_size", asked, "tokens prefilled at a time", PromptError)
    return optional_count("chunk_size", given, "tokens prefilled at a time")


def _candidates(settings: AnswerSettings) -> str | None:
    """The setting that asks for candidates of an answer, if one does."""
    return next((name for name in CANDIDATES if getattr(settings, name, None) is not None), None)


def _check_candidates(settings: AnswerSettings, reading: _Reading, lengths: list[int], question_aware: bool) -> None:
    """Raises PromptError for candidates of an answer where a cache sees part of its prompt before `model.generate`."""
    asked = _candidates(settings)
    if asked is None or (question_aware and not any(map(reading.early, lengths))):
        return
    if reading.rereads:
        remedy = f"use a method that reads a prompt once, which {reading.method.name} does not"
    else:
        remedy = "leave chunk_size out" if question_aware else "leave question_aware=False out"
    raise PromptError(f"{asked} works on prompts that are read in one pass: leave it out, or {remedy}.")


def _check_lengths(model: PreTrainedModel, settings: AnswerSettings, lengths: list[int]) -> None:
    longest, most = max(lengths), context_length(model.config)
    if most is not None and longest >= most:
        raise PromptError(
            f"the prompt has {longest:,} tokens, which leaves no room for an answer; the model reads {most:,} at most. "
            'Shorten the text, leave its middle out (truncate="middle"), or use a model that reads more.'
        )
    if settings.max_new_tokens is None and longest >= settings.max_length:
        raise PromptError(
            f"the prompt has {longest:,} tokens, and max_length={settings.max_length} counts them as well as the "
            "answer: pass max_new_tokens instead, or a larger max_length."
        )
