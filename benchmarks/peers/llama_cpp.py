"""Time of a token by tokens of context, and of prompts, in llama.cpp and in Winnow, on the weights of one GGUF file.

    python benchmarks/peers/llama_cpp.py MODEL.gguf            # writes docs/results/llama_cpp-VENDOR.*
    python benchmarks/peers/llama_cpp.py MODEL.gguf --threads 2 --depths 0,8192 --weights bfloat16,float32

llama.cpp is built in build/peers the first time (CMake and a C++ compiler, some minutes). With --openvino OpenVINO
GenAI takes part, where it reads the file (pip install openvino-genai). All caches read their prompts first, and then
take turns; a stopped run reads the prompts anew and goes on with the turn at which it was.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from contenders import Contender, PeerError, rest
from evaluated import RESULTS, ROOT
from genai_rival import GENAI_CACHES, GenaiRival, check_genai
from llama_build import PACKAGE, TURNS, VERSION, built
from llama_rival import CACHES, LlamaRival
from measured import Measured, Subject, Times
from own_steps import METHODS, WARM_UP, OwnCache, OwnModel
from race_page import page, records
from reporting import machine, of_this_processor, resumable, software, write_results
from winnow.commands.console import messages, silence_libraries
from winnow.estimate.journal import Journal
from winnow.kernels import native
from winnow.models import ModelSource, open_model
from winnow.models.gguf import is_gguf
from winnow.models.loading import dtype_for
from winnow.models.weights import WEIGHTS
from winnow.runs.environment import processor_name


@dataclass(frozen=True)
class Plan:
    """Sizes of all measurements."""

    depths: Sequence[int]
    threads: Sequence[int]
    steps: int
    """Tokens of a repetition, of which every cache has one a round."""
    rounds: int

    def subjects(self, contenders: Sequence[Contender]) -> Iterator[Subject]:
        """All pieces of work in the order of their turns: prompts, then rounds.

        All caches have their turns at a depth together, and every round begins with another one. Depths go up in one
        round and down in the next, so that a machine that slows down bends no line.
        """
        readers = {(each.engine, each.weights, _reads_for(each)): each for each in reversed(contenders)}
        for each in reversed(readers.values()):
            for depth in filter(None, self.depths):
                yield Subject("prompt", each.engine, each.cache, each.weights, max(self.threads), depth, "0")
        for done in range(self.rounds):
            first = done * len(contenders) // self.rounds
            for depth in self.depths if done % 2 == 0 else reversed(self.depths):
                for each in (*contenders[first:], *contenders[:first]):
                    for threads in self.threads:
                        yield Subject("token", each.engine, each.cache, each.weights, threads, depth, str(done))


def _reads_for(contender: Contender) -> str | None:
    """The cache for which a prompt is read; None where one prompt serves all caches of the engine."""
    return None if contender.engine == "winnow" else contender.cache


@dataclass(frozen=True)
class Race:
    """All engines on one model."""

    contenders: Sequence[Contender]
    plan: Plan
    times: Times

    def run(self) -> None:
        """Measures what is missing."""
        subjects = list(self.plan.subjects(self.contenders))
        missing = self.times.missing(subjects)
        contenders = {(each.engine, each.cache, each.weights): each for each in self.contenders}
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=messages()) as progress:
            bar = progress.add_task("", total=len(subjects), completed=len(subjects) - len(missing))
            for subject in missing:
                progress.update(bar, description=_title(subject))
                rest()
                self._measure(subject, contenders[subject.engine, subject.cache, subject.weights])
                progress.advance(bar)

    def _measure(self, subject: Subject, contender: Contender) -> None:
        if subject.what == "prompt":
            ms, held = contender.prompt(subject.depth), 0
        else:
            held = contender.cache_bytes(subject.depth)
            ms = contender.token(subject.depth, subject.threads, self.plan.steps)
        self.times.add(Measured(**asdict(subject), ms=[ms], cache_bytes=held, weight_bytes=contender.weight_bytes))


def _title(subject: Subject) -> str:
    """A piece of work in the words of a progress line."""
    work = "a prompt" if subject.what == "prompt" else f"round {int(subject.turn) + 1}"
    return f"{work}, {subject.depth:,} tokens, {subject.engine} {subject.cache}"


def numbers_of_a_token(source: ModelSource) -> int:
    """Keys and values of a token, in all layers."""
    config = source.config.get_text_config(decoder=True)
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * config.num_key_value_heads * dim)


def own_caches(source: ModelSource, names: Sequence[str], threads: int) -> list[Contender]:
    """All methods on the model with its weights in each of several types.

    Raises ModelError for a type that there is not.
    """
    kinds = dict.fromkeys(name if name in WEIGHTS[1:] else _type(source, name) for name in names)
    return [OwnCache(own, method) for own in (OwnModel(source, kind, threads) for kind in kinds) for method in METHODS]


def _type(source: ModelSource, name: str) -> str:
    """The name of the type that is meant; "auto" for what suits this processor."""
    return str(dtype_for(source, torch.device("cpu"), name)).removeprefix("torch.")


def whole_numbers(least: int) -> Callable[[str], list[int]]:
    """Reads a list of different whole numbers, `least` or more, into ascending order."""

    def read(text: str) -> list[int]:
        try:
            numbers = sorted({int(entry) for entry in text.split(",")})
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no list of whole numbers, as in 1,2") from None
        if numbers[0] < least:
            raise argparse.ArgumentTypeError(f"{numbers[0]} is less than {least}")
        return numbers

    return read


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", metavar="MODEL.gguf", help="a GGUF file that both engines read")
    parser.add_argument("--depths", type=whole_numbers(0), default=[0, 4096, 8192, 16384], help="tokens of context")
    parser.add_argument("--threads", type=whole_numbers(1), default=[1, 2])
    parser.add_argument("--weights", default="auto", help="of Winnow: auto, a type, int8, int4 or gguf, or several")
    parser.add_argument("--steps", type=int, default=16, help="tokens of a repetition")
    parser.add_argument("--rounds", type=int, default=8, help="repetitions of every cache at every depth")
    parser.add_argument("--llama-turns", type=Path, metavar="PROGRAM", help="instead of building one")
    parser.add_argument("--openvino", action="store_true", help="OpenVINO GenAI takes turns, too")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "peers", help="folder to build in")
    parser.add_argument("--journal", type=Path, default=ROOT / "build" / "llama_cpp.jsonl")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the page")
    parser.add_argument("--page-only", action="store_true", help="write the page from what was measured")
    options = parser.parse_args(arguments)
    if len(options.depths) < 2:
        parser.error("--depths: a slope needs two depths at least")
    if min(options.steps, options.rounds) < 1:
        parser.error("--steps and --rounds are 1 at least")
    return options


def opened(model: str) -> ModelSource:
    """The model's configuration and tokenizer. Raises PeerError for anything but a GGUF file, and ModelError."""
    if not is_gguf(model):
        raise PeerError(f"{model} is no GGUF file; give the path of one, which is what llama.cpp reads.")
    return open_model(model)


def check_room(source: ModelSource, options: argparse.Namespace) -> None:
    """Raises PeerError where the model cannot read so many tokens."""
    needed = options.depths[-1] + options.steps + WARM_UP
    if source.context is not None and needed > source.context:
        raise PeerError(
            f"{source.name} reads {source.context:,} tokens at most, not {needed:,}: give smaller --depths or --steps."
        )


def rivals_of(options: argparse.Namespace, numbers: int) -> list[LlamaRival | GenaiRival]:
    """All caches of other engines. numbers: keys and values of a token. Raises PeerError where one cannot be had."""
    model = Path(options.model)
    if options.openvino:
        check_genai()
    program = options.llama_turns or built(TURNS, options.build)
    depths, threads = list(filter(None, options.depths)), max(options.threads)
    rivals: list[LlamaRival | GenaiRival] = [
        LlamaRival(program, model, kind, depths, threads, options.steps, numbers) for kind in CACHES
    ]
    others = GENAI_CACHES if options.openvino else ()
    return rivals + [GenaiRival(model, kind, options.depths, threads, options.steps) for kind in others]


def own_software() -> dict[str, str]:
    """Versions and kernels; of how many threads they are, every record says itself."""
    return {**software(), "kernels": native.isa() if native.library() else "reference"}


def race(options: argparse.Namespace, source: ModelSource, times: Times) -> None:
    """Builds llama.cpp where that is needed, and measures what is missing."""
    rivals = rivals_of(options, numbers_of_a_token(source))
    owns = own_caches(source, options.weights.split(","), max(options.threads))
    plan = Plan(options.depths, options.threads, options.steps, options.rounds)
    try:
        Race([*rivals, *owns], plan, times).run()
    finally:
        for rival in rivals:
            rival.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures what is missing, then writes the page."""
    options = parsed(arguments)
    silence_libraries()
    source = opened(options.model)
    check_room(source, options)
    size = Path(options.model).stat().st_size
    about_model = {"model": Path(options.model).name, "bytes": size}
    config = {**about_model, "processor": processor_name(), "steps": options.steps, "llama": VERSION, **own_software()}
    options.journal.parent.mkdir(parents=True, exist_ok=True)
    times = Times(Journal.open(options.journal, config))
    if not options.page_only:
        race(options, source, times)
    measured = times.all()
    if not measured:
        raise PeerError(f"{options.journal} holds no times yet; leave --page-only out.")
    about = (
        f"{Path(options.model).name}, {size / 1e6:,.0f} MB; llama.cpp as in {PACKAGE} {VERSION}; Winnow's tokens by "
        "[graphs](../graphs.md)."
    )
    text = page(measured, about, machine())
    write_results(options.out, of_this_processor("llama_cpp"), text, records(measured))
    print(text)


if __name__ == "__main__":
    resumable(main)
