"""Time of a token by tokens of context, and of prompts, in llama.cpp and in Winnow, on the weights of one GGUF file.

    python benchmarks/peers/llama_cpp.py MODEL.gguf            # writes docs/results/llama_cpp-VENDOR.*
    python benchmarks/peers/llama_cpp.py MODEL.gguf --threads 2 --depths 0,8192 --weights bfloat16,float32

llama.cpp is built in build/peers the first time (CMake and a C++ compiler, about eight minutes on two cores). With
--openvino OpenVINO GenAI takes part, where it reads the file (pip install openvino-genai). The engines take turns; a
stopped run goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from evaluated import RESULTS, ROOT
from genai_rival import GENAI_CACHES, GenaiRival, check_genai
from llama_bench import CACHES, PACKAGE, VERSION, LlamaRival, built
from measured import Engine, Measured, Subject, Times, What
from own_steps import METHODS, OwnModel
from race_page import page, records
from reporting import machine, of_this_processor, resumable, software, write_results
from rivals import PeerError, Rival
from winnow import CompressedCache
from winnow.commands.console import messages, silence_libraries
from winnow.estimate.journal import Journal
from winnow.kernels import native
from winnow.models import ModelSource, open_model
from winnow.models.dtypes import pick_dtype
from winnow.models.gguf import is_gguf
from winnow.models.weights import WEIGHTS
from winnow.runs.environment import processor_name

FILE = "file"
"""Name of the weights that stay as the GGUF file has them."""


@dataclass(frozen=True)
class Plan:
    """Sizes of all measurements."""

    depths: Sequence[int]
    threads: Sequence[int]
    steps: int
    """Tokens of a repetition."""
    repeats: int
    """Repetitions of llama.cpp's; Winnow's caches have one in every turn."""
    rounds: int

    def subjects(self, what: What, engine: Engine, cache: str, weights: str, depth: int, turn: str) -> list[Subject]:
        """One for every number of threads; prompts are read by the largest."""
        threads = [max(self.threads)] if what == "prompt" else self.threads
        return [Subject(what, engine, cache, weights, count, depth, turn) for count in threads]


@dataclass(frozen=True)
class OwnPrompt:
    """A prompt in Winnow, read when it is needed."""

    own: OwnModel
    depth: int
    threads: int

    @cached_property
    def read(self) -> tuple[CompressedCache, float]:
        """The prompt, which waits for its compression, and the milliseconds of reading it."""
        return self.own.read(self.depth, self.threads)

    @cached_property
    def caches(self) -> dict[str, CompressedCache]:
        """The prompt under every method."""
        return {method: self.read[0].compressed_by(method) for method in METHODS}


@dataclass(frozen=True)
class Turn:
    """A rival's cache, and then all of Winnow's, at a depth."""

    round: int
    depth: int
    rival: Rival

    @property
    def title(self) -> str:
        """Its name among those of the depth."""
        return f"{self.round}, {self.rival.engine} {self.rival.name}"


@dataclass(frozen=True)
class Race:
    """All engines on one model."""

    rivals: Sequence[Rival]
    owns: Sequence[OwnModel]
    plan: Plan
    times: Times
    numbers: int
    """Keys and values of a token, in all layers."""

    def turns(self) -> Iterator[Turn]:
        """All turns; a depth has those of a round together."""
        for done in range(self.plan.rounds):
            for depth in self.plan.depths:
                yield from (Turn(done, depth, rival) for rival in self.rivals)

    def run(self) -> None:
        """Measures what is missing."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        turns, prompts = list(self.turns()), [OwnPrompt(own, -1, 1) for own in self.owns]
        first = {rival.engine: rival for rival in reversed(self.rivals)}
        with Progress(*columns, console=messages()) as progress:
            bar = progress.add_task("", total=len(turns))
            for turn in turns:
                rival = turn.rival
                progress.update(bar, description=f"{turn.depth:,} tokens, {rival.engine} {rival.name} and Winnow")
                if prompts[0].depth != turn.depth:
                    prompts = [OwnPrompt(own, turn.depth, max(self.plan.threads)) for own in self.owns]
                if turn.depth and rival == first[rival.engine]:
                    self._prompts(turn, prompts if rival == self.rivals[0] else ())
                self._their_tokens(turn)
                for prompt in prompts:
                    self._own_tokens(turn, prompt)
                progress.advance(bar)

    def _prompts(self, turn: Turn, prompts: Sequence[OwnPrompt]) -> None:
        """The rival reads a prompt, and so does Winnow with every type of its weights."""
        rival = turn.rival
        for subject in self._missing(turn, "prompt", rival.engine, rival.name, FILE):
            printed = rival.prompt(turn.depth, subject.threads)
            self._add(subject, printed.ms, 0, printed.model_size)
        for prompt in prompts:
            for subject in self._missing(turn, "prompt", "winnow", METHODS[0], prompt.own.weights):
                self._add(subject, [prompt.read[1]], 0, prompt.own.weight_bytes)

    def _their_tokens(self, turn: Turn) -> None:
        rival, plan = turn.rival, self.plan
        missing = self._missing(turn, "token", rival.engine, rival.name, FILE)
        if not missing:
            return
        subjects = {subject.threads: subject for subject in missing}
        for printed in rival.tokens(turn.depth, list(subjects), plan.steps, plan.repeats):
            nbytes = rival.nbytes(self.numbers * turn.depth)
            self._add(subjects[printed.n_threads], printed.ms, nbytes, printed.model_size)

    def _own_tokens(self, turn: Turn, prompt: OwnPrompt) -> None:
        own = prompt.own
        missing = [each for method in METHODS for each in self._missing(turn, "token", "winnow", method, own.weights)]
        for subject in sorted(missing, key=lambda each: each.threads):
            cache = prompt.caches[subject.cache]
            held = cache.stats().held_bytes
            ms = own.token(cache, subject.threads, self.plan.steps)
            self._add(subject, [ms], held, own.weight_bytes)

    def _missing(self, turn: Turn, what: What, engine: Engine, cache: str, weights: str) -> list[Subject]:
        return self.times.missing(self.plan.subjects(what, engine, cache, weights, turn.depth, turn.title))

    def _add(self, subject: Subject, ms: Sequence[float], cache_bytes: int, weight_bytes: int) -> None:
        self.times.add(Measured(**asdict(subject), ms=list(ms), cache_bytes=cache_bytes, weight_bytes=weight_bytes))


def numbers_of_a_token(source: ModelSource) -> int:
    """Keys and values of a token, in all layers."""
    config = source.config.get_text_config(decoder=True)
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * config.num_key_value_heads * dim)


def own_models(source: ModelSource, names: Sequence[str]) -> list[OwnModel]:
    """The model with its weights in each of several types. Raises ModelError for a type that there is not."""
    kinds = [name if name in WEIGHTS[1:] else _type(source, name) for name in names]
    return [OwnModel(source, kind) for kind in dict.fromkeys(kinds)]


def _type(source: ModelSource, name: str) -> str:
    """The name of the type that is meant; "auto" for what suits this processor."""
    return str(pick_dtype(name, torch.device("cpu"), source.config, source.gguf)).removeprefix("torch.")


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
    parser.add_argument("--weights", default="auto", help="of Winnow: auto, a type, int8 or int4, or several")
    parser.add_argument("--steps", type=int, default=16, help="tokens of a repetition")
    parser.add_argument("--repeats", type=int, default=3, help="repetitions of llama.cpp's in each of its turns")
    parser.add_argument("--rounds", type=int, default=1, help="how often every depth has its turns")
    parser.add_argument("--llama-bench", type=Path, metavar="PROGRAM", help="instead of building one")
    parser.add_argument("--openvino", action="store_true", help="OpenVINO GenAI takes turns, too")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "peers", help="folder to build in")
    parser.add_argument("--journal", type=Path, default=ROOT / "build" / "llama_cpp.jsonl")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the page")
    parser.add_argument("--page-only", action="store_true", help="write the page from what was measured")
    options = parser.parse_args(arguments)
    if len(options.depths) < 2:
        parser.error("--depths: a slope needs two depths at least")
    if min(options.steps, options.repeats, options.rounds) < 1:
        parser.error("--steps, --repeats and --rounds are 1 at least")
    return options


def opened(model: str) -> ModelSource:
    """The model's configuration and tokenizer. Raises PeerError for anything but a GGUF file, and ModelError."""
    if not is_gguf(model):
        raise PeerError(f"{model} is no GGUF file; give the path of one, which is what llama.cpp reads.")
    return open_model(model)


def check_room(source: ModelSource, options: argparse.Namespace) -> None:
    """Raises PeerError where the model cannot read so many tokens."""
    needed = options.depths[-1] + options.steps + 1
    if source.context is not None and needed > source.context:
        raise PeerError(
            f"{source.name} reads {source.context:,} tokens at most, not {needed:,}: give smaller --depths or --steps."
        )


def rivals_of(options: argparse.Namespace) -> list[Rival]:
    """All caches of other engines. Raises PeerError where one cannot be had."""
    model = Path(options.model)
    if options.openvino:
        check_genai()
    program = options.llama_bench or built(options.build)
    rivals: list[Rival] = [LlamaRival(program, model, cache) for cache in CACHES]
    return rivals + [GenaiRival(model, cache) for cache in GENAI_CACHES if options.openvino]


def own_software() -> dict[str, str]:
    """Versions and kernels; of how many threads they are, every record says itself."""
    return {**software(), "kernels": native.isa() if native.library() else "reference"}


def race(options: argparse.Namespace, source: ModelSource, times: Times) -> None:
    """Builds llama.cpp where that is needed, and measures what is missing."""
    rivals = rivals_of(options)
    plan = Plan(options.depths, options.threads, options.steps, options.repeats, options.rounds)
    owns = own_models(source, options.weights.split(","))
    Race(rivals, owns, plan, times, numbers_of_a_token(source)).run()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures what is missing, then writes the page."""
    options = parsed(arguments)
    silence_libraries()
    source = opened(options.model)
    check_room(source, options)
    size = Path(options.model).stat().st_size
    config = {"bytes": size, "processor": processor_name(), "steps": options.steps, "llama": VERSION, **own_software()}
    options.journal.parent.mkdir(parents=True, exist_ok=True)
    times = Times(Journal.open(options.journal, config))
    if not options.page_only:
        race(options, source, times)
    measured = times.all()
    if not measured:
        raise PeerError(f"{options.journal} holds no times yet; leave --page-only out.")
    about = f"{Path(options.model).name}, {size / 1e6:,.0f} MB; llama.cpp as in {PACKAGE} {VERSION}."
    text = page(measured, about, machine())
    write_results(options.out, of_this_processor("llama_cpp"), text, records(measured))
    print(text)


if __name__ == "__main__":
    resumable(main)
