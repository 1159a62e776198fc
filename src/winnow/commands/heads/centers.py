"""`winnow heads centers`: where the queries of every head lie, measured once per model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.markup import escape

from winnow.cache.attending import attending
from winnow.commands.checks import prepare_output
from winnow.commands.console import output
from winnow.commands.inputs import read_document
from winnow.commands.loading import load
from winnow.commands.model_names import model_name
from winnow.commands.options.heads.centers import CentersOptions
from winnow.commands.prefill_progress import reading
from winnow.commands.progress import stage
from winnow.estimate.centers import measure_centers
from winnow.heads.storage import SUFFIX
from winnow.models import open_model


def centers(options: CentersOptions) -> None:
    """Writes the centers of a model's queries on a text."""
    prepare_output(options.out, options.force, SUFFIX)
    with stage("Reading the text"):
        text = read_document(options.document)
        source = open_model(options.model)
        ids = source.tokenizer(text, return_tensors="pt", truncation=False).input_ids
        ids = ids[:, : min(options.tokens, source.context or options.tokens)]
    model = load(source, options)
    with attending(model), reading(model, ids.shape[1]):
        found = replace(measure_centers(model, ids), model=model_name(source), text=Path(options.document).name)
    found.save(options.out)
    layers, heads, _ = found.mean.shape
    written = f"{options.out}  {layers} layers of {heads} query heads, {found.tokens:,} queries of each"
    output().print(f"Written:\n  {escape(written)}", soft_wrap=True)
