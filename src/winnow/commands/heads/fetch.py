"""`winnow heads fetch`: published head scores from their authors' repositories."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import replace
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from winnow.commands.checks import prepare_output
from winnow.commands.console import messages
from winnow.commands.inputs import InputError
from winnow.commands.options.heads.fetch import FetchOptions
from winnow.commands.progress import stage
from winnow.heads import HeadScores, read_scores
from winnow.heads.published import PublishedTable, published_table
from winnow.heads.storage import SUFFIX

SECONDS = 30
"""Without an answer for so long, the net is taken as closed."""
_MOST = 1 << 26
"""Bytes of a table, at most."""


def fetch(options: FetchOptions) -> None:
    """Writes one published table, with its license where there is one."""
    known = published_table(options.model, options.kind)
    out = options.out or Path(f"{known.model}-{known.method}{SUFFIX}")
    prepare_output(out, options.force, SUFFIX)
    with stage(f"Fetching {known.url}"):
        content = _content(known, out)
    table = _read(known, content)
    table.save(out)
    layers, heads = table.shape
    terms = f"license {known.license}" if known.license else "its repository states no license"
    text = f"{out}: {table.method} of {known.model}, {layers} layers of {heads} KV heads; {terms}\n  from {known.url}"
    messages().print(text, markup=False, soft_wrap=True)


def _content(known: PublishedTable, out: Path) -> bytes:
    """The file. Raises InputError, with the way by hand, where it cannot be had or is another one."""
    grouped = "" if known.kv_heads is None else f" --kv-heads {known.kv_heads}"
    command = f"winnow heads convert {known.file}{grouped} -o {out}"
    by_hand = f"Save it as {known.file} where the net is open, then: {command}"
    try:
        with urlopen(known.url, timeout=SECONDS) as answer:
            content: bytes = answer.read(_MOST + 1)
    except (OSError, ValueError) as problem:
        reason = problem.reason if isinstance(problem, URLError) else problem
        raise InputError(f"Cannot fetch {known.url}: {reason}. {by_hand}") from None
    if hashlib.sha256(content).hexdigest() != known.sha256:
        raise InputError(
            f"{known.url} is not the file that Winnow knows (SHA-256 {known.sha256[:12]}…): it was changed, or damaged "
            f"on the way. Repeat the command. {by_hand}"
        )
    return content


def _read(known: PublishedTable, content: bytes) -> HeadScores:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / known.file
        file.write_bytes(content)
        table = read_scores(file)
    if known.kv_heads is not None:
        table = table.grouped(known.kv_heads)
    notes = f"{table.notes}; {known.url}" if table.notes else known.url
    return replace(table, model=known.model, license=known.license, notes=notes, path=None)
