"""`winnow heads kvzip`: head scores from a text that the model repeats."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from datetime import date

from rich.markup import escape

from winnow.bundled import is_bundled
from winnow.cache.replay import words_in
from winnow.commands.checks import prepare_output
from winnow.commands.compress import document_start
from winnow.commands.console import output
from winnow.commands.formats import written_seconds
from winnow.commands.heads.needle import haystack_of, reads_prose
from winnow.commands.inputs import InputError, read_document
from winnow.commands.loading import load
from winnow.commands.model_names import dtype_name, model_name
from winnow.commands.options.heads.kvzip import KVzipOptions
from winnow.commands.prefill_progress import read_twice, reading
from winnow.commands.progress import stage
from winnow.commands.prompt_options import style_of
from winnow.estimate.repeated import Calibration, RepeatedScores, repeated_scores, tokens_that_fit
from winnow.estimate.split_half import check_signal
from winnow.evaluate.prompts import common_start
from winnow.evaluate.turns import measured
from winnow.heads import HeadScores
from winnow.heads.storage import SUFFIX
from winnow.models import ModelSource, open_model
from winnow.score import KVzip
from winnow.tasks.prompt_style import PromptStyle

LEAST = 16
"""Tokens of a text."""


def kvzip(options: KVzipOptions) -> None:
    """Reads and repeats the texts, writes the scores and says how far two halves of the texts agree."""
    prepare_output(options.out, options.force, SUFFIX)
    scorer, style = KVzip(normalize=options.plus), style_of(options)
    style.check_question_last()
    with stage("Reading the tokenizer and the texts"):
        source = open_model(options.model)
        words = words_in(source.tokenizer, style.chat_template)
        most = tokens_that_fit(source.context, options.tokens, words, scorer)
        texts = [calibration(source, text, most, style) for text in _texts(source, options, most)]
    model = load(source, options)
    begin = time.perf_counter()
    tokens = [text.tokens.shape[1] for text in texts]
    with reading(model, sum(read_twice(scorer, length, words) for length in tokens), "Reading and repeating"):
        found = repeated_scores(model, texts, words, scorer, options.chunk_size)
    seconds = time.perf_counter() - begin
    told = f"{sum(tokens):,} tokens repeated"
    if not options.keep_noise:
        remedy = "Give another --text or more --tokens, or --keep-noise to write them all the same."
        check_signal(found.agreement, told, remedy)
    table = _table(options, source, found, {"tokens": most, **asdict(scorer), "dtype": dtype_name(model)})
    table.save(options.out)
    layers, heads = table.shape
    console = output()
    console.print(
        f"{table.method}: {layers} layers of {heads} KV heads; {told} in {written_seconds(seconds)}; halves of them "
        f"agree: {found.agreement}. Written:",
        soft_wrap=True,
        markup=False,
    )
    console.print(f"  {escape(str(options.out))}", soft_wrap=True)


def calibration(source: ModelSource, text: str, most: int, style: PromptStyle) -> Calibration:
    """The first tokens of a text in its prompt, `most` at most. Raises InputError where they are too few."""
    style = measured(source.tokenizer, style)
    whole = document_start(source.tokenizer, text, style)
    first = common_start([whole, document_start(source.tokenizer, "?", style)])
    tokens = whole[:, :most]
    if tokens.shape[1] < first + LEAST:
        remedy = f"give a text of {LEAST}" if tokens.shape[1] == whole.shape[1] else f"give --tokens {first + LEAST}"
        raise InputError(
            f"{max(0, tokens.shape[1] - first)} tokens of text are too few to tell heads apart; {remedy} or more."
        )
    return Calibration(tokens, first)


def _texts(source: ModelSource, options: KVzipOptions, most: int) -> list[str]:
    if options.texts:
        return [read_document(path) for path in options.texts]
    haystack = haystack_of(None, False, reads_prose(source.tokenizer), options.seed)
    return [" ".join(haystack.sentences(most, frozenset()))]


def _table(options: KVzipOptions, source: ModelSource, found: RepeatedScores, asked: dict[str, object]) -> HeadScores:
    count = max(1, len(options.texts or ()))
    origin = "file" if options.texts else "generated"
    return HeadScores(
        found.values,
        method="kvzip",
        model=model_name(source),
        seed=None if options.texts else options.seed,
        samples=count,
        date=date.today().isoformat(),
        license=options.license or ("Apache-2.0" if is_bundled(source.name) else ""),
        notes=options.notes or f"highest score of {count} text{'s' if count > 1 else ''}, repeated by the model",
        settings=json.dumps({**asked, "texts": count, "texts_from": origin, **style_of(options).named_facts()}),
    )
