"""Decoding token by token through a graph of the whole step, which Python has no part in."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import CacheLayerMixin, LinearAttentionLayer

from winnow.cache.capture import Capture, Captured
from winnow.cache.compressed import CompressedCache
from winnow.cache.cuda_graph import CudaGraph
from winnow.cache.guards import check_implementation, is_count
from winnow.cache.host_graph import HostGraph
from winnow.cache.hybrid import CompressedHybridLayer, holds_state
from winnow.cache.latent_layer import LatentLayer
from winnow.cache.layer import CompressedLayer
from winnow.cache.linear_states import KeptState, LinearStates
from winnow.cache.placed_step import Places
from winnow.cache.prefix import Prefix
from winnow.cache.sliding_layer import CompactSlidingLayer
from winnow.cache.sliding_step import Windows
from winnow.cache.state_calls import StateCalls
from winnow.cache.step_memory import StepMemory
from winnow.cache.writable import writable
from winnow.errors import CacheError, GraphError
from winnow.kernels.interface import AttentionPlan
from winnow.kernels.without_autocast import autocast_is_on
from winnow.models.cache_argument import with_cache
from winnow.models.replacing import is_watched_by_others

WORTH = 3
"""Passes of as many tokens on trial, of which this one is captured."""
INSTEAD = "call the model itself, with this cache"
_HELD_HERE = (CompressedLayer, LatentLayer, CompactSlidingLayer, LinearAttentionLayer, CompressedHybridLayer)
"""Layers whose token a graph of a CPU can hold."""
ordinary_forward: WeakKeyDictionary[PreTrainedModel, Callable[..., Any]] = WeakKeyDictionary()
"""The forward functions of models whose `forward` is another one for now, which may replay steps."""


class _Fed(NamedTuple):
    """Memory for new tokens and their positions, [R, n] each."""

    tokens: Tensor
    positions: Tensor


@dataclass(eq=False, slots=True)
class _Graph:
    """A captured step, and the memory that it keeps alive."""

    captured: Captured
    memory: StepMemory
    places: Places | None
    fed: _Fed
    queries: list[Tensor | None]
    """Those of every layer, on a CPU."""
    tried: list[tuple[Tensor, Tensor] | None]
    """Keys and values on trial of every sliding layer."""
    state_calls: StateCalls | None
    """Calls that take right tokens into linear states, of a pass on trial."""
    replays: int = 0


class _Rehearsal:
    """A step that is done rather than captured, but in the way of a captured one.

    Kernels are loaded, and libraries make what they need, before a device captures and allows neither.
    """

    def __init__(self, work: Callable[[], Tensor], device: torch.device) -> None:
        self.output = work()

    def replay(self) -> None:
        """Nothing: it is done."""


class _Held(NamedTuple):
    """The rows of a cache after a step."""

    prefixes: list[Prefix | None]
    """Those of the first layer."""
    lengths: Tensor
    """[R] tokens behind them."""
    counted: Tensor
    """[R] where the tail counts these: elsewhere once rows were chosen anew, which may be alike otherwise."""

    @classmethod
    def by(cls, layer: CompressedLayer) -> _Held:
        """The rows as they are now."""
        assert layer.tail is not None
        return cls(list(layer.prefixes), layer.tail.lengths.clone(), layer.tail.lengths)

    def same_rows(self, layer: CompressedLayer) -> bool:
        """True if a layer has the same rows, however many tokens came to them."""
        return layer.tail is not None and self.prefixes == layer.prefixes and self.counted is layer.tail.lengths

    def same_as(self, layer: CompressedLayer) -> bool:
        """True if a layer holds the same tokens."""
        return self.same_rows(layer) and torch.equal(self.lengths, self.counted)

    def tokens(self) -> Tensor:
        """[R] int64 tokens of every row, without padding."""
        return self.lengths + torch.tensor([0 if each is None else each.length for each in self.prefixes], device="cpu")


class GraphedDecoder:
    """Decoding over a compressed prompt, one token per row at a time, by replaying a graph of the step.

    A small model then decodes as fast as its kernels run, instead of as fast as Python asks for them. On a GPU it is a
    CUDA graph, on a CPU a list of operators and calls of the compiled kernels. The first step is an ordinary one, the
    second, on a GPU, a rehearsal, and the next is captured. After anything that moves memory (a fold, `room` tokens, a
    new order of rows), one step is ordinary again and the next one is captured. After every step the cache is as after
    an ordinary step, so both kinds can alternate: calls of the model with this cache, `generate()`, `crop`,
    `copy.deepcopy`.

    Args:
        model: a decoder-only model on one device, after `model.set_attn_implementation("winnow")`.
        cache: a cache of this model, with a compressed prompt.
        room: number of tokens to make room for in the tails at a time.
        positions: [R] or [R, 1] positions of the next tokens. None: the number of tokens in each row, without padding,
            as `generate()` counts them.
        capture: a function that captures work on the model's device; None: the one for this kind of device.

    Raises:
        GraphError: on a GPU the model has latents, linear layers or sliding windows; it lies on several devices, or is
            in assisted decoding.
        CacheError: the cache belongs to another model or has no compressed prompt, room is not a number of tokens, or
            positions do not match the rows.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        cache: CompressedCache,
        room: int = 256,
        *,
        positions: Tensor | None = None,
        capture: Capture | None = None,
    ) -> None:
        self._model = model
        self._cache = cache
        if not is_count(room):
            raise CacheError(f"room is {room!r}; give the number of tokens to make room for, at least 1.")
        self._room = int(room)
        self._layers = _layers_of(model, cache)
        self._sliding = cache.sliding_layers()
        self._windows = Windows(self._sliding)
        self._states = LinearStates(cache.layers)
        self._check_ready()
        self._device = self._layers[0].device
        self._is_here = self._device.type == "cpu"
        self._capture = capture or (HostGraph if self._is_here else CudaGraph)
        self._graph: _Graph | None = None
        self._trials: dict[int, _Graph] = {}
        self._tried: Counter[int] = Counter()
        # A state is large, and a copy of it for every token would take longer than what an interrupt costs.
        self._goes_back = self._is_here and not self._states
        self._rehearsed = self._is_here  # where a step that is recorded is done like any other
        for layer in self._layers:
            layer.make_room(self._room)
        for window in self._sliding:
            window.make_room(self._room)
        with writable():
            self._held = _Held.by(self._layers[0])
            self._ahead = self._positions_ahead(positions)
            self._place_rows()

    @property
    def replays(self) -> int:
        """Number of steps replayed from the current graph so far; 0 if there is none."""
        return 0 if self._graph is None else self._graph.replays

    def attempts(self, count: int) -> int:
        """Number of passes of so many tokens on trial replayed from their current graph so far; 0 if there is none."""
        return self._trials[count].replays if count in self._trials else 0

    @writable()
    def step(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Appends one token per row to the cache and returns the logits [R, V] of the next tokens, without gradients.

        Args:
            tokens: int64 [R] or [R, 1].
            positions: [R] or [R, 1] positions of these tokens; None: those after the previous step's.

        Raises:
            GraphError: the step cannot be captured, the kernels are torch's, the model is in assisted decoding, or
                autocast is on. On a CPU also where modules of the model have hooks or are compiled.
            CacheError: the cache no longer holds a compressed prompt, an earlier forward pass was not finished, or the
                rows changed after positions were given to the decoder.
            ValueError: tokens or positions do not match the rows.
        """
        self._check_ready()
        self._follow()
        self._windows = Windows(self._sliding)
        self._states.make_writable()
        _take("tokens", tokens, self._fed.tokens)
        if positions is not None:
            _take("positions", positions, self._fed.positions)
        now = self._memory()
        if self._graph is not None and not self._graph.memory.same_as(now):
            self._forget()  # before anything else takes memory
        if now is None:
            return self._ordinary()
        if self._graph is None and not self._rehearsed:
            _, logits = self._recorded(now, _Rehearsal, self._fed)
            self._rehearsed = True
        elif self._graph is None:
            self._graph, logits = self._graphed(now, self._fed)
        else:
            logits = self._replayed(self._graph)
        return logits[:, -1]

    @writable()
    def attempt(self, tokens: Tensor, positions: Tensor) -> Tensor | None:
        """The logits [R, n, V] after tokens on trial (see `Trial`); None where a pass is to be done.

        It is until as many came at a time a few times, which is worth a graph of their own.

        Args:
            tokens: int64 [R, n], n > 1.
            positions: [R, n] their positions.

        Raises:
            GraphError, CacheError: as `step`.
        """
        self._check_ready()
        self._follow()
        count, now = tokens.shape[1], self._memory()
        graph = self._trials.get(count)
        if graph is not None and not graph.memory.same_as(now):
            self._forget()
            graph = None
        if now is None or any(layer.room() < count for layer in self._layers):
            return None
        self._windows = Windows(self._sliding)
        self._states.make_writable()
        if graph is None:
            self._tried[count] += 1
            if self._tried[count] < WORTH:
                return None
            self._trials[count], logits = self._graphed(now, _Fed(tokens.clone(), positions.clone()))
            return logits
        graph.fed.tokens.copy_(tokens)
        graph.fed.positions.copy_(positions)
        return self._replayed(graph)

    def states(self) -> list[KeptState]:
        """A copy of the states of linear layers, with which `take_back` takes back the next step."""
        self._states.make_writable()  # what is taken back is written to the memory of now
        return self._states.mark()

    def take_back(self, states: list[KeptState] | None = None) -> None:
        """Takes back the token of the last step, once.

        Args:
            states: those before that step. Models without linear layers have none.

        Raises:
            CacheError: there was no step, it is folded, or there are no states of a model that has some.
        """
        if self._states and not states:
            raise CacheError(
                "linear layers keep no tokens; take the decoder's states() before the step, and give them to take_back."
            )
        if not self._sliding and not self._states:
            self._cache.crop(-1)
            return
        if self._sliding and self._windows.are_back():
            raise CacheError("there is no step to take back; take steps first.")
        for layer in self._layers:
            layer.check_crop(1)
        self._states.take_back(states or [])
        # A window has forgotten what the token pushed out of it; the marks have not.
        self._windows.take_back()
        for layer in self._layers:
            CompressedLayer.crop(layer, -1)  # without a state beside its attention, which is back

    def take_back_trial(self, count: int, states: list[KeptState]) -> bool:
        """Takes back all the `count` tokens of an attempt, with the `states()` before it.

        False if these tokens come into other states by `StateCalls` than the attempt left.
        """
        self._cache.end_trial(count)
        calls, found = self._trials[count].state_calls, self.states()
        self._states.take_back(states)
        if calls is None:
            return True
        calls.take(count)
        same = self._states.are_as(found)
        self._states.take_back(states)
        return same

    # --- ways of a step ------------------------------------------------------------------------------------------

    def _ordinary(self) -> Tensor:
        """A step of which the host does its part: folding, making room and plans."""
        for layer in self._layers:
            if layer.tail is not None and layer.tail.room() < 1:
                layer.make_room(self._room)
        for window in self._sliding:
            if window.ring is not None and window.ring.room() < 1:
                window.make_room(self._room)
        logits = self._pass(self._fed)[:, -1]
        self._held = _Held.by(self._layers[0])
        return logits

    def _replayed(self, graph: _Graph) -> Tensor:
        """Logits [R, n, V]."""
        count, graph.replays = graph.fed.tokens.shape[1], graph.replays + 1
        with self._or_as_before() if self._goes_back else self._cache.compression.progress.changing():
            graph.captured.replay()
            if count == 1:
                for layer in self._layers:
                    layer.count_token()
            else:
                for layer, queries in zip(self._layers, graph.queries, strict=True):
                    layer.count_trial(count, queries)
                for window, tried in zip(self._sliding, graph.tried, strict=True):
                    window.exchange_tried(tried)
                self._cache.compression.state_calls = graph.state_calls
        self._held.lengths.add_(count)
        return graph.captured.output.clone()

    def _forget(self) -> None:
        """Lets go of graphs, and of memory that is theirs alone."""
        self._graph = None
        self._trials.clear()
        self._tried.clear()

    @contextmanager
    def _or_as_before(self) -> Iterator[None]:
        """Within, a CPU adds a token to every row; if that fails, the cache is as before."""
        marks = [layer.mark(self._held.lengths) for layer in self._layers]
        try:
            yield
        except BaseException:
            self._forget()
            self._windows.take_back()
            for layer, mark in zip(self._layers, marks, strict=True):
                layer.take_back(mark)
            self._place_rows()
            raise

    def _graphed(self, memory: StepMemory, fed: _Fed) -> tuple[_Graph, Tensor]:
        if self._is_here:
            _check_unseen(self._model)
        try:
            return self._recorded(memory, self._capture, fed)
        except (CacheError, torch.OutOfMemoryError):
            raise
        except RuntimeError as problem:
            if isinstance(problem.__context__, KeyboardInterrupt):  # it left a capture that could not end so
                raise KeyboardInterrupt from problem
            raise _uncapturable(problem) from problem

    def _recorded(self, memory: StepMemory, capture: Capture, fed: _Fed) -> tuple[_Graph, Tensor]:
        """The next step, captured and replayed for the first time, and its logits [R, n, V].

        Where that fails the cache is as before.
        """
        places, count = self._places(memory), fed.tokens.shape[1]
        marks, states, queries = [], self._states.mark(), []
        try:
            for layer, each in zip(self._layers, memory.layers, strict=True):
                marks.append(layer.begin_capture(each.plan, places, count))
            captured = capture(lambda: self._placed_pass(places, fed), self._device)
            for layer, mark in zip(self._layers, marks, strict=True):
                queries.append(layer.end_capture(mark, count))
            self._windows.check_grown(count)
            tried = [window.exchange_tried(None) for window in self._sliding]
            self._states.check_in_place(states)
            state_calls = None
            if count > 1 and isinstance(captured, HostGraph):
                state_calls = captured.state_calls(self._states, count)
            graph = _Graph(captured, memory, places, fed, queries, tried, state_calls)
            # Here, as on a CPU the tokens are in the memory of the cache by now, and not counted yet.
            return graph, self._replayed(graph)
        except BaseException:
            self._states.take_back(states)
            self._windows.take_back()
            for layer, mark in zip(self._layers, marks, strict=False):
                layer.take_back(mark)
            self._cache.compression.progress.withdraw_all()
            self._forget()
            self._place_rows()
            raise

    def _places(self, memory: StepMemory) -> Places | None:
        """Places of the next token that a device knows; None on a CPU, where kernels count tokens."""
        if self._is_here:
            return None
        return Places([each.tail for each in memory.layers], [each.recent for each in memory.layers])

    def _placed_pass(self, places: Places | None, fed: _Fed) -> Tensor:
        if places is None:
            return self._pass(fed)
        places.begin()
        logits = self._pass(fed)
        places.end()
        return logits

    def _pass(self, fed: _Fed) -> Tensor:
        """Logits [R, n, V] of tokens at their positions, which then move on."""
        forward = ordinary_forward.get(self._model, self._model)
        found = forward(input_ids=fed.tokens, position_ids=fed.positions, **with_cache(self._model, self._cache))
        fed.positions.add_(1)
        logits: Tensor = found.logits
        return logits

    # --- what the cache is by now --------------------------------------------------------------------------------

    def _check_ready(self) -> None:
        first = self._layers[0]
        if not first.compressed or first.tail is None:
            raise CacheError(
                "nothing was compressed yet; run the prompt through the model first, then graph its steps."
            )
        if any(layer.recording for layer in self._layers):
            raise GraphError(
                "assisted decoding removes tokens from this cache, which a graph cannot do; end it, or make a new "
                "CompressedCache."
            )
        if autocast_is_on(first.device):
            raise GraphError(
                "the weights that autocast converts are freed at its end, but a graph would still read them; "
                f"load the model in that dtype, or {INSTEAD}."
            )
        self._cache.get_seq_length()  # raises where the last pass was not finished
        _check_windows(self._cache)

    def _memory(self) -> StepMemory | None:
        """Memory of all layers' next token; None where an ordinary step is due."""
        plan = self._layers[0].ready_plan()
        if plan is not None:
            _check_plan(plan)  # before windows are asked, which such kernels never make ready
        return StepMemory.of(self._layers, self._sliding, self._states)

    def _follow(self) -> None:
        """Takes note of tokens and rows that the cache got otherwise."""
        first = self._layers[0]
        if self._held.same_as(first):
            return
        if self._is_here and self._held.same_rows(first):
            # Kernels count the tokens of a row where they are: whatever came or went, only positions are others.
            self._held = _Held.by(first)
            self._fed.positions.copy_((self._held.tokens() + self._ahead)[:, None])
            return
        self._forget()
        if not self._held.same_rows(first):
            if bool(self._ahead.any()):
                raise CacheError(
                    "the rows of this cache were replaced or folded outside of this decoder, so the positions given to "
                    "it no longer hold; make a new GraphedDecoder with positions."
                )
            self._ahead = torch.zeros(len(first.prefixes), dtype=torch.int64, device="cpu")
        self._held = _Held.by(first)
        self._place_rows()

    def _place_rows(self) -> None:
        """Memory for the next tokens."""
        positions = (self._held.tokens() + self._ahead)[:, None].to(self._device)
        self._fed = _Fed(torch.zeros_like(positions), positions)

    def _positions_ahead(self, positions: Tensor | None) -> Tensor:
        """[R] by how much positions are larger than the tokens that rows hold."""
        held = self._held.tokens()
        if positions is None:
            return torch.zeros_like(held)
        if positions.numel() != len(held) or positions.is_floating_point():
            raise CacheError(
                f"positions have the shape {list(positions.shape)} in {positions.dtype}; give a whole number for each "
                f"of {len(held)} rows."
            )
        return positions.detach().cpu().reshape(-1).to(torch.int64) - held


def _take(name: str, given: Tensor, held: Tensor) -> None:
    """Copies numbers [R] or [R, 1] to where the next step reads them."""
    if given.numel() != held.numel():
        raise ValueError(f"{name} have the shape {list(given.shape)}; give one for each of {len(held)} rows.")
    held.copy_(given.reshape(held.shape))


def _layers_of(model: PreTrainedModel, cache: CompressedCache) -> list[CompressedLayer]:
    """The layers of a cache. Raises CacheError where steps over it cannot be captured."""
    if not cache.compression.owns(model):
        raise CacheError(
            "this cache is of another model; make the GraphedDecoder with the model that the cache was made for."
        )
    check_implementation(cache.config)
    others = sorted({type(layer).__name__ for layer in cache.layers if not _is_held(layer, model.device)})
    if others:
        raise GraphError(
            f"some layers of this model ({', '.join(others)}) are not full attention with heads of their own, and "
            f"count tokens on the host, so a step cannot be captured in a graph; {INSTEAD}."
        )
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise GraphError(f"{type(model).__name__} takes no position_ids, which a graph needs; {INSTEAD}.")
    layers = cache.compressed_layers()
    devices = {weight.device for weight in model.parameters()}
    devices |= {layer.device for layer in layers if layer.is_initialized}
    if len(devices) > 1:
        raise GraphError(
            f"the model or its cache is on several devices ({', '.join(sorted(map(str, devices)))}), but a graph has "
            f"one; load the model onto one device, or {INSTEAD}."
        )
    return layers


def _is_held(layer: CacheLayerMixin, device: torch.device) -> bool:
    """True for a layer whose token a graph can hold; on a CPU also one that shares another's keys and holds nothing."""
    if device.type != "cpu":
        return type(layer) is CompressedLayer
    return type(layer) in _HELD_HERE or not holds_state(layer)


def _check_windows(cache: CompressedCache) -> None:
    """Raises GraphError where a token may not see all of its sliding windows."""
    if not cache.windows_hide_nothing():
        raise GraphError(
            "there is padding in the sliding windows of this model, or they are chunks, which only a mask tells, so a "
            f"step cannot be captured in a graph; {INSTEAD}."
        )


def _check_unseen(model: PreTrainedModel) -> None:
    """Raises GraphError where others see what modules inside a model do, or a compiler does it out of sight."""
    for name, module in model.named_modules():
        is_compiled = getattr(module, "_compiled_call_impl", None) is not None
        if module is not model and (is_compiled or is_watched_by_others(module)):
            raise GraphError(
                f"{name} has a hook, a forward of its own or compiled code, which a graph would leave out, so a step "
                f"cannot be captured in a graph on a CPU; {INSTEAD}."
            )


def _check_plan(plan: AttentionPlan) -> None:
    """Raises CacheError for attention of which the host has a part at every step."""
    if not plan.replays:
        raise GraphError(
            "decode attention runs in torch here (float64, on a GPU heads of more than 256 channels, no Triton or "
            f"compiled library), so a step cannot be captured in a graph; {INSTEAD}."
        )


def _uncapturable(problem: RuntimeError) -> GraphError:
    lines = str(problem).strip().splitlines() or [type(problem).__name__]
    return GraphError(
        "a step of this model cannot be captured in a graph, because the host looks at numbers of it or sends some "
        f"(mixtures of experts and rotations that scale with positions do): {lines[0].rstrip('.')}. Instead, {INSTEAD}."
    )
