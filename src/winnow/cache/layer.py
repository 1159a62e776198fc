"""One full-attention layer of the cache: a compressed prefix per row, and a dense tail."""

from __future__ import annotations

import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from winnow.cache.another_prompt import check_positions
from winnow.cache.arriving import Arriving
from winnow.cache.captured_step import CapturedStep
from winnow.cache.compression import Compression
from winnow.cache.compressor import LayerCompressor
from winnow.cache.gradients import check_no_gradients
from winnow.cache.handle import Attended, Handle, Phase, attach
from winnow.cache.held_rows import HeldRows
from winnow.cache.host_step import HostStep, TrialStep
from winnow.cache.idle_device import wait_until_idle
from winnow.cache.length import LogicalLength
from winnow.cache.listening import ReadAgain
from winnow.cache.padded_turns import PaddedTurn
from winnow.cache.padding import on_host
from winnow.cache.placed_step import PlacedStep, Places
from winnow.cache.prefix import Prefix
from winnow.cache.progress import Part
from winnow.cache.recent_queries import RecentQueries, RingMark
from winnow.cache.tail import Tail
from winnow.cache.token_step import TokenMark, TokenStep
from winnow.cache.turn import Turn, decode_plan
from winnow.doubts import settled_together
from winnow.errors import CacheError, GraphError
from winnow.kernels.interface import AttentionPlan, AttentionSpec
from winnow.kernels.without_autocast import without_autocast
from winnow.models.carrier import NOTE
from winnow.view import last_queries


@dataclass(eq=False, slots=True)
class LayerMark:
    """A layer before it counted the tokens of a forward pass."""

    seen: int
    prefixes: list[Prefix | None]
    tail: Tail
    lengths: Tensor | int
    """The tail's; see `Tail.mark`."""
    recent: RingMark | None


class CompressedLayer(HeldRows):
    """Keys and values of one layer, for transformers' cache interface.

    Before compression everything that came lies in the tail, except a prompt that arrives whole: that is
    compressed straight from the model's own tensors. Afterwards the rows hold prefixes and the tail what came
    later. Lengths told to transformers are logical: all tokens ever seen, padding included.
    """

    is_sliding = False
    splits_passes = True
    """True where a pass that holds more than the prompt can be divided at the prompt's end."""
    is_croppable = True
    is_compileable = False

    def __init__(self, compression: Compression, index: int) -> None:
        super().__init__()
        self.compression = compression
        self.index = index
        self.part = Part("full", index)
        self._forget()

    def _forget(self) -> None:
        super()._forget()
        self.is_initialized = False
        self.waiting = False  # for its compression: the whole prompt is there
        self.whole: tuple[Tensor, Tensor] | None = None  # that prompt, where it waits in the model's own tensors
        self.pending: Handle | None = None
        self.compressor = self._made_compressor()
        self._turn: Turn | None = None  # only from its arrival until it was attended to

    # --- what transformers calls ---------------------------------------------------------------------------

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Takes dtype, device and number of rows from the first keys [R, H, N, D] and values [R, H, N, Dv]."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self._sizes = key_states.shape[1], key_states.shape[-1], value_states.shape[-1]  # heads, D, Dv
        self.compression.check_heads(self.index, key_states.shape[1])
        self.tail = Tail(key_states, value_states, capacity=self._expected(key_states.shape[2]))
        self.prefixes = [None] * key_states.shape[0]
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Counts the new tokens and hands them on, with a note for the attention function.

        Returns keys and values to attend over: the whole prompt so far before compression, else the new tokens.
        """
        step = self._step
        if step is not None and self.pending is None and step.takes(key_states, value_states):
            return self._begin_token(step, key_states, value_states), value_states
        self.check_taken()
        if self.compression.listening is not None:
            return self._read_again(self.compression.listening.row, key_states, value_states)
        self._check_fits(key_states, value_states)
        if self.seen:
            check_no_gradients(key_states, value_states)
        new, progress = key_states.shape[2], self.compression.progress
        progress.enter(self.part)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self.compressed or self.waiting:
            progress.before[self.part] = None  # nothing to take back yet: what `_settle` does would be done again
            self._settle(new)
            progress.before[self.part] = self.mark()
        phase = self._phase(new)
        if phase is Phase.PART and self.index == 0:
            self.compression.notice(self.seen, new)
        self.seen += new
        if phase is Phase.PART or (phase is Phase.PROMPT and self._held_tail().longest):
            self._held_tail().append(key_states, value_states)
            key_states, value_states = self._held_tail().filled()
        behind = self._behind() if phase is Phase.PROMPT else 0
        self.pending = Handle(self, phase, new, earlier=self.seen - new, behind=behind)
        return attach(key_states, self.pending), value_states

    def get_seq_length(self) -> int:
        """All tokens ever seen, padding included."""
        return self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Logical length after `query_length` more tokens, marked as ours for the mask function, and offset 0."""
        # A prompt that waits will be compressed before the next tokens are attended to.
        return LogicalLength(self.seen + query_length, self.compressed or self.waiting, self), 0

    def get_max_length(self) -> int:
        """No maximum."""
        return -1

    def activate_past_recording(self) -> None:
        """Assisted decoding is about to start.

        Where the prompt's end is not known (`prompt_length`), compression waits for the `crop` that tells it.
        """
        self.recording, self._step = True, None

    def crop(self, tokens_to_remove: int) -> None:
        """Takes back the last tokens (a negative number); 0 only ends a deferred prefill.

        Raises:
            CacheError: the tokens are part of the compressed prompt.
        """
        tokens = -tokens_to_remove if tokens_to_remove <= 0 else max(0, self.seen - tokens_to_remove)
        if not self.is_initialized:
            return
        if tokens:
            held = self._held_of_last(tokens)
            self._held_tail().crop(held)
            self._go_back(self.seen - tokens)
            self.arriving.crop(tokens)
            if self.recent is not None:
                self.recent.crop(held)
        if self.waiting and not self.compression.defer:
            self.compress_waiting()

    def end_trial(self, wrong: int) -> None:
        """Takes back the last `wrong` tokens of a trial; those before them count as if they had come one by one."""
        if wrong:
            self._held_tail().crop(wrong)
            self._go_back(self.seen - wrong)
        if self.recent is not None:
            self.recent.take(wrong)

    def check_crop(self, tokens: int) -> None:
        """Raises CacheError where `tokens` tokens cannot be taken back."""
        if self.is_initialized:
            self._held_tail().check_crop(self._held_of_last(tokens))
            self.arriving.check_crop(tokens)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row i becomes what row beam_idx[i] was, with repeats or omissions. Prefixes are shared, not copied."""
        self._select_rows(beam_idx)

    def reset(self) -> None:
        """Empty again."""
        self._forget()

    def offload(self) -> None:
        """Refused: a compressed layer stays where its model is."""
        raise CacheError(
            "winnow caches cannot be offloaded; use a smaller budget instead of cache offloading (offloading=False)."
        )

    prefetch = offload

    # --- what a captured step asks ---------------------------------------------------------------------------

    def ready_plan(self) -> AttentionPlan | None:
        """The plan by which the next token can attend as the last one did; None: it goes the general way.

        It does where nothing attended yet since rows or buffers moved, where a fold is due, and where there is no room.
        """
        tail, fold_every = self._held_tail(), self.compression.fold_every
        due = fold_every is not None and tail.longest >= fold_every
        return None if due or tail.room() < 1 else self._plan

    def room(self) -> int:
        """Tokens that every row can take before memory moves."""
        return self._held_tail().room()

    def make_room(self, tokens: int) -> None:
        """Room for so many more tokens of every row, at most as many as are dense between folds."""
        if self._held_tail().make_room(tokens):
            self._plan = self._step = None

    def begin_capture(self, plan: AttentionPlan, places: Places | None, count: int = 1) -> LayerMark:
        """From now on `count` tokens of every row go to places that the device knows; returns the layer as it is.

        places: None on a CPU, where the kernel counts tokens. Several tokens are on trial.
        """
        mark = self.mark()
        if places is not None:
            self._step = PlacedStep(plan, mark.tail, self.recent, places)
        else:
            step = HostStep if count == 1 else TrialStep
            self._step = step(plan, mark.tail, self.recent, count)
        return mark

    def end_capture(self, mark: LayerMark, count: int = 1) -> Tensor | None:
        """Tokens go the usual way again, and those that were captured were none.

        Returns their queries [R, Hq, n, D], which replays write, on a CPU. Raises GraphError where tokens did not go
        to those places.
        """
        step = self._step
        if not isinstance(step, CapturedStep) or step.taken != count:
            raise self._attends_otherwise()
        self.seen, self._step = mark.seen, None
        return step.queries

    def _attends_otherwise(self) -> GraphError:
        return GraphError(
            f"attention of compressed layer {self.index} differed from the step before, so the steps of this model "
            "cannot be captured; call the model itself."
        )

    def count_token(self) -> None:
        """Counts a token of every row that a replay brought."""
        self.seen += 1
        self._held_tail().count()
        if self.recent is not None:
            self.recent.count_one()

    def count_trial(self, count: int, queries: Tensor | None) -> None:
        """Counts tokens on trial that a replay brought, with their queries [R, Hq, n, D]; `end_trial` is to come."""
        self.seen += count
        self._held_tail().count(count)
        if self.recent is not None and queries is not None:
            self.recent.hold(queries)

    # --- what the mask function calls ----------------------------------------------------------------------

    def check_rows(self, rows: int) -> None:
        """Raises CacheError for a forward pass of so many rows, where others are held."""
        # A row that is read again comes alone.
        if self.is_initialized and rows != len(self.prefixes) and self.compression.listening is None:
            raise CacheError(
                f"the cache holds {len(self.prefixes)} rows, but the model now sends {rows}; use "
                "cache.batch_repeat_interleave or batch_select_indices, or start a new CompressedCache."
            )

    def held_tokens(self) -> list[int]:
        """Tokens that each row has seen, without padding, once the whole prompt is there."""
        if not self.compressed:
            return [int(self.arriving.valid(row).sum()) for row in range(len(self.prefixes))]
        lengths = self._held_tail().lengths.tolist()
        return [(each.length if each else 0) + tail for each, tail in zip(self.prefixes, lengths, strict=True)]

    # --- what the attention function calls -----------------------------------------------------------------

    def check_taken(self) -> None:
        """Raises CacheError if the previous `update` never reached winnow's attention function."""
        if self.pending is not None and not self.pending.taken:
            raise self.compression.progress.bypassed()

    def finish(self) -> None:
        """The attention function is through with what the last `update` brought; a turn is folded now."""
        if self._turn is not None:
            self._fold_turn(self._turn)
        self._end_pass()

    def give_up(self) -> None:
        """The attention function refuses what the last `update` brought, before it did anything with it."""
        new = self.pending.new_tokens if self.pending is not None else 0
        self._go_back(self.seen - new)
        if not self.compressed and self._held_tail().longest:
            self._held_tail().crop(new)
        self.pending = None
        self.compression.progress.withdraw(self.part)

    def let_go(self) -> None:
        """Breaks off what refers to this layer itself, where a forward pass did not end: the cache is gone."""
        if self.pending is not None:
            self.pending.let_go()
        self.pending, self._turn = None, None

    def mark(self, lengths: Tensor | None = None) -> LayerMark:
        """The layer before new tokens. lengths: [R] those of the tail before, where new ones may be there already."""
        recent = None if self.recent is None else self.recent.mark()
        tail = self._held_tail()
        return LayerMark(self.seen, self.prefixes, tail, tail.mark() if lengths is None else lengths, recent)

    def take_back(self, mark: LayerMark | TokenMark | None) -> None:
        """Puts the layer back to a mark; None: it was reached, but no token was counted."""
        self.pending, self._turn, self._plan, self._step = None, None, None, None
        if mark is None:
            return
        if isinstance(mark, tuple):
            self._take_back_token(*mark)
            return
        self.prefixes, self.tail = mark.prefixes, mark.tail
        self.tail.restore(mark.lengths)
        if self.recent is not None and mark.recent is not None:
            self.recent.restore(mark.recent)
        self._go_back(mark.seen)

    def _take_back_token(self, seen: int, lengths: Tensor | int, column: int) -> None:
        self._held_tail().restore(lengths)
        if self.recent is not None:
            self.recent.next = column
        self._go_back(seen)

    def settle(self) -> None:
        """Compresses or folds now what the next tokens would find waiting for it."""
        if self.compressed or self.waiting:
            with torch.no_grad():
                self._settle(new=1)

    def attended_by(self, attention: nn.Module, spec: AttentionSpec) -> None:
        """Remembers, without owning it, the attention module that this layer belongs to, and how it attends.

        Raises CacheError for a module of another model, or of another layer.
        """
        before = self.compressor.attention
        if before is None and self.compression.owns(attention):
            self.compressor.attention, self.compressor.spec = ref(attention), spec
        elif before is None or before() is not attention:
            raise self.compression.foreign()

    @property
    def spec(self) -> AttentionSpec | None:
        """The layer's way from query-key products to weights, once it attended."""
        return self.compressor.spec

    @property
    def sums_attention(self) -> bool:
        """True if what all queries of the prompt pay is to be summed up: from its first chunk on, or not at all.

        Not where tokens may be taken back, or another method may be chosen: queries then wait with the prompt.
        """
        if self.arriving.started:
            return self.arriving.summed
        return self.compression.method.scorer.sums_attention and not self._waits

    def finish_prompt(
        self, queries: Tensor, keys: Tensor, values: Tensor, valid: Tensor | None, paid: Tensor | None
    ) -> None:
        """The whole prompt was attended to; compresses it unless that has to wait for a `crop`.

        Args:
            queries: [R, Hq, Q, D] of the last chunk.
            keys, values: [R, H, N, D] and [R, H, N, Dv] of the whole prompt.
            valid: [R, N] bool, or None where nothing is padding.
            paid: [R, H, N] fp32, what these queries paid, where it is summed up.
        """
        shared = self.compression
        behind = not self._waits and shared.overlap.serves(keys, values)
        self._remember(queries, keys.shape[2], valid, paid, outlives=self._waits or behind)
        if self._waits:
            if not self._held_tail().longest:
                self._held_tail().append(keys, values)
            self.waiting = True
        elif behind:
            self.waiting, self.whole = True, (keys.detach(), values.detach())  # without a note that refers to the layer
            shared.overlap.add(self, keys.device, last=self.index + 1 == len(shared.heads))
        else:
            shared.overlap.precede(self)
            wait_until_idle(keys.device)
            self._compress(keys, values)

    def compress_waiting(self) -> None:
        """Compresses the prompt that waits for it."""
        self._compress(*(self.whole or self._held_tail().filled()))

    def finish_part(self, queries: Tensor, length: int, valid: Tensor | None, paid: Tensor | None) -> None:
        """A part of a longer prompt, now `length` tokens, was attended to; `paid` as in `finish_prompt`."""
        self._remember(queries, length, valid, paid, outlives=True)

    def finish_replay(self, queries: Tensor, keys: Tensor, values: Tensor) -> None:
        """A part of a waiting prompt was read again: queries [1, Hq, n, D], behind keys [1, H, N + n, D] and values."""
        listening, spec = self.compression.listening, self.spec
        assert listening is not None
        assert spec is not None
        read = ReadAgain(self.compressor.module(), spec, queries[0], keys[0], values[0])
        with without_autocast(keys.device):
            listening.hear(self.index, read)

    def check_positions(self, positions: Tensor | None, valid: Tensor | None) -> None:
        """Raises CacheError where new tokens, at positions [R or 1, Q], cannot be those after what is held.

        valid: [R, Q] if some are padding, [R, N] of a prompt that is arriving. The first layer looks for all.
        """
        if self.index > 0:
            return
        if self.compressed:
            check_positions(positions, valid, self.held_tokens())
        elif self.pending is not None and valid is None:
            # Positions of padded prompts do not count padding, which is held until the prompt is compressed.
            check_positions(positions, None, [self.pending.earlier] * len(self.prefixes))

    def append(self, queries: Tensor, keys: Tensor, values: Tensor, valid: Tensor | None) -> Attended:
        """New tokens after compression: [R, Hq, Q, D], [R, H, Q, D] and [R, H, Q, Dv]; returns what they attend over.

        valid: [R, Q] if some are padding.
        """
        if valid is not None:
            before = self.padded if self._held_tail().longest else ()  # no crop goes behind an empty tail
            self.padded = (*before, PaddedTurn(self.seen - valid.shape[1], on_host(valid)))
        if self.recent is not None and self.compression.on_trial:
            self.recent.hold(queries)
        elif self.recent is not None:
            new = queries.shape[2]
            self.recent.add(queries, valid, size=self._queries_to_keep(new))
            if new > 1 and not self.recording:
                self._turn = self._begin_turn(keys, values, valid)
                if self._turn is not None:
                    return self._turn
        self._append(keys, values, valid)
        return self

    def attend_token(
        self,
        handle: Handle,
        attention: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float | None,
        softcap: float | None,
        sinks: Tensor | None,
    ) -> Tensor | None:
        """Takes tokens as those before them, and attends: [R, Hq, n, D] -> [R, n, Hq, Dv].

        None, and nothing was done, where the query or the way of attending is another. Raises CacheError where such a
        step is being captured.
        """
        step, handle.values = self._step, None
        if step is None or self.pending is not handle or not step.asks(attention, query, scaling, softcap, sinks):
            if isinstance(step, CapturedStep):
                # The general way makes tables, which a device refuses while it captures.
                raise self._attends_otherwise()
            return None
        handle.taken, handle.over = True, self
        output = step.run(query, *self._stored(key, value))
        if output is None:
            handle.taken, handle.over = False, None
            return None
        self._end_pass()
        return output

    def attended_over(self, query: Tensor) -> None:
        """The query [R, Hq, Q, D] of new tokens attended over all that rows hold; others may come as it did."""
        plan, step, attention = self._plan, self._step, self.compressor.attention
        if query.shape[2] > 1 or plan is None or attention is None or self.recording:
            return
        if step is None or step.plan is not plan or not step.serves(self.recent):
            fold_every = self.compression.fold_every
            self._step = TokenStep.after(plan, query, self._held_tail(), self.recent, attention, fold_every)

    def _append(self, keys: Tensor, values: Tensor, valid: Tensor | None) -> None:
        tail = self._held_tail()
        moved = tail.append(keys, values) if valid is None else tail.append_valid(keys, values, valid)
        if moved:
            self._plan = self._step = None

    def plan(self, spec: AttentionSpec) -> AttentionPlan:
        """The decode kernel's plan for this layer, rebuilt only when rows or buffers moved."""
        if self._plan is None or not spec.same_as(self._plan.spec):
            self._plan = self._planned(self.prefixes, self._held_tail(), spec)
        return self._plan

    def row_plan(self, row: int, spec: AttentionSpec) -> AttentionPlan:
        """The same for one row alone, where a padded chunk leaves every row its own number of new tokens."""
        return self._planned(self.prefixes[row : row + 1], self._held_tail().one(row), spec)

    # --- inside ----------------------------------------------------------------------------------------------

    def _stored(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Those that the layer keeps of new tokens, whose keys and values are attended to."""
        return keys, values

    def _end_pass(self) -> None:
        """The layer is through with what the last `update` brought."""
        self.pending = None
        self.compression.progress.leave()

    def _planned(self, prefixes: Sequence[Prefix | None], dense: Tail, spec: AttentionSpec) -> AttentionPlan:
        """A plan for attention over a prefix and dense tokens of every row."""
        return decode_plan(prefixes, dense, spec)

    def _made_compressor(self) -> LayerCompressor:
        return LayerCompressor(self.compression, self.index)

    def _read_again(self, row: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keys [1, H, N + n, D] and values of a row of the waiting prompt and, behind it, of n tokens."""
        self.compression.progress.enter(self.part)
        held = self.arriving.row(row, *self._held_tail().filled())
        keys, values = torch.cat([held.keys[None], keys], dim=2), torch.cat([held.values[None], values], dim=2)
        self.pending = Handle(self, Phase.REPLAY, keys.shape[2] - held.keys.shape[1], earlier=held.keys.shape[1])
        return attach(keys, self.pending), values

    def _phase(self, new: int) -> Phase:
        if self.compressed:
            return Phase.TAIL
        goal = self.compression.prompt_length
        return Phase.PROMPT if goal is None or self.seen + new >= goal else Phase.PART

    def _behind(self) -> int:
        """Tokens behind the prompt's end in a pass that reached it; 0 where it is not known, or all of them wait."""
        goal = self.compression.prompt_length
        return 0 if goal is None or not self.splits_passes or self._waits else self.seen - goal

    def _expected(self, new: int) -> int:
        """Tokens to make room for at once where a prompt begins with `new` of them, as growing copies what is there."""
        goal = self.compression.prompt_length
        return 0 if goal is None or not 0 < new < goal else goal

    def _begin_token(self, step: TokenStep | CapturedStep, keys: Tensor, values: Tensor) -> Tensor:
        """As `update`, for new tokens of every row that are as those before them."""
        progress, part, seen = self.compression.progress, self.part, self.seen
        mark = step.mark(seen)
        progress.enter(part)
        progress.before[part] = mark
        new = keys.shape[2]
        self.seen = seen + new
        self.pending = handle = Handle(self, Phase.TAIL, new, seen, values=values)
        # On the model's own tensor: another one over its memory takes torch as long as half of all else here.
        setattr(keys, NOTE, handle)
        return keys

    def _check_fits(self, keys: Tensor, values: Tensor) -> None:
        """Raises CacheError, before anything is changed, for keys and values that cannot be of this layer's model."""
        if keys.dtype != values.dtype:
            raise CacheError(
                f"keys are {keys.dtype} and values {values.dtype}, as torch.autocast leaves them; load the model in "
                "one dtype, and run it without autocast."
            )
        if not self.is_initialized:
            self.compression.check_heads(self.index, keys.shape[1])
            return
        rows, heads, new, dim = keys.shape
        if new > 1 and new == self.seen and not self.recording and self.is_fresh():
            self.compression.check_no_part(new)
        if self.waiting and self.compression.defer:
            raise CacheError(
                "this cache was made with defer=True, so its prompt stays dense and no tokens can follow; continue "
                "with cache.compressed_by(method)."
            )
        self._check_same_kind(keys, rows)
        sent = heads, dim, values.shape[-1]
        if sent != self._sizes:
            raise CacheError(
                f"compressed layer {self.index} holds (heads, D, Dv) = {self._sizes}, but the model now sends {sent}: "
                "this cache is of another model. Make one CompressedCache per model."
            )

    def _check_same_kind(self, keys: Tensor, rows: int) -> None:
        if keys.dtype != self.dtype or keys.device != self.device:
            raise CacheError(
                f"the cache holds {self.dtype} on {self.device}, but the model sends {keys.dtype} on {keys.device}; "
                "start a new CompressedCache after moving or converting a model."
            )
        self.check_rows(rows)

    def _remember(
        self, queries: Tensor, length: int, valid: Tensor | None, paid: Tensor | None, outlives: bool
    ) -> None:
        """Notes a chunk's queries and validity, and what they paid; the prompt is `length` tokens so far.

        outlives: they are asked for when this forward pass is over, or after the layer.
        """
        keep = length if outlives else None
        if outlives and not self.recording:
            goal = self.compression.prompt_length or 0
            keep = self.compression.queries_needed(max(length, goal), summed=paid is not None)
        self.arriving.add(queries, valid, keep, paid)

    def _settle(self, new: int) -> None:
        """Compression and folding that had to wait for the next tokens, of which `new` are about to come.

        A prompt that waits for a `crop` is compressed, as releases that skip an empty one mean that every token was
        accepted; tails that hold enough tokens are folded.
        """
        if self.waiting:
            self.compress_waiting()
        self._fold(new)

    @property
    def _waits(self) -> bool:
        """True if it is not known yet which tokens of the prompt will be compressed, or by which method."""
        knows_end = self.splits_passes and self.compression.prompt_length is not None
        return self.compression.defer or (self.recording and not knows_end)

    def _compress(self, keys: Tensor, values: Tensor) -> None:
        """Replaces the dense prompt [R, H, N, D], [R, H, N, Dv] by one prefix per row."""
        begin = time.perf_counter()
        alone = self.compression.all_or_nothing()
        with torch.no_grad(), without_autocast(keys.device), alone, settled_together():
            prefixes, recent, count = [], [], self.compression.queries_to_remember()
            for row in range(keys.shape[0]):
                parts = self.arriving.row(row, keys, values)
                prefixes.append(self.compressor.compress(row, parts))
                recent.append(last_queries(parts.queries, count).clone())
            self.compression.expect(self.index, prefixes)
        # In one step, so that an interrupt finds all of it done or nothing.
        self.__dict__.update(
            prefixes=prefixes,
            recent=RecentQueries(recent, count) if self.compression.folds else None,
            tail=self._new_tail(keys, values),
            arriving=Arriving(),
            _plan=None,
            _step=None,
            compressed=True,
            waiting=False,
            whole=None,
        )
        self.compression.seconds += time.perf_counter() - begin

    def _new_tail(self, keys: Tensor, values: Tensor) -> Tail:
        """An empty one for keys [R, H, *, D] and values [R, H, *, Dv]."""
        return Tail(keys, values, limit=self.compression.fold_every)

    def _fold(self, new: int) -> None:
        """Folds the tails of rows that hold enough tokens; `new` ones are about to come.

        Now and not right after those were attended to: other layers may attend over the same keys and values, and
        assisted decoding takes back what was not accepted.
        """
        tail = self.tail
        if tail is None or self.recent is None:
            return
        # While candidates are taken back, several may have come at a time.
        least = self.compression.turns_from if self.recording else self.compression.fold_every
        if least is None or tail.longest < least:
            return
        rows = self._rows_to_fold(tail.lengths, least)
        if rows:
            self._fold_rows(rows, tail, new)

    def _begin_turn(self, keys: Tensor, values: Tensor, valid: Tensor | None) -> Turn | None:
        """New tokens [R, H, Q, D] and [R, H, Q, Dv], where rows are to be folded once these were attended to."""
        tail = self._held_tail()
        new = keys.shape[2] if valid is None else valid.sum(dim=1).cpu()
        least = self.compression.turns_from
        rows = [] if least is None else self._rows_to_fold(tail.lengths + new, least)
        if not rows:
            return None
        turn = Turn(self.prefixes, tail.followed_by(keys, values, valid), rows, self._planned)
        if len(rows) < len(self.prefixes):
            if valid is None:
                others = torch.ones(keys.shape[0], keys.shape[2], dtype=torch.bool, device="cpu")
            else:
                others = valid.clone()
            others[rows] = False
            self._append(keys, values, others)
        return turn

    def _fold_turn(self, turn: Turn) -> None:
        """Folds a turn that was attended to, in the rows that it is long enough for."""
        self._fold_rows(turn.rows, turn.dense, room=1)
        self._turn = None

    def _fold_rows(self, rows: Sequence[int], dense: Tail, room: int) -> None:
        """Folds dense tokens of some rows into their prefixes; `room`: how many tokens come next."""
        wait_until_idle(dense.keys.device)
        begin, recent = time.perf_counter(), self.recent
        assert recent is not None
        prefixes = list(self.prefixes)
        alone = self.compression.all_or_nothing()
        with torch.no_grad(), without_autocast(dense.keys.device), alone, settled_together():
            for row in rows:
                prefixes[row] = self.compressor.fold(row, prefixes[row], dense.row(row), recent.row(row))
        # In one step, so that an interrupt finds all rows folded or none.
        self.__dict__.update(
            prefixes=prefixes,
            tail=self._held_tail().emptied(rows, room),
            recent=recent if self.recording else recent.trimmed(),
            _plan=None,
            _step=None,
        )
        self.compression.seconds += time.perf_counter() - begin

    def _rows_to_fold(self, lengths: Tensor, least: int) -> list[int]:
        """Rows whose dense tokens, [R] lengths, are `least` or more, and can be folded."""
        return [row for row, held in enumerate(lengths.tolist()) if held >= least and self._knows_queries(row, held)]

    def _queries_to_keep(self, new: int) -> int:
        """Last queries to keep with a chunk of `new` tokens, at least."""
        spare = self.compression.queries_to_remember() + new if self.recording else 0  # some may be taken back
        return max(spare, self._held_tail().longest + new) if self.compression.method.scorer.accumulates else spare

    def _knows_queries(self, row: int, new: int) -> bool:
        """True if as many queries are there as folding a row's last `new` tokens needs: not right after a `crop`."""
        recent, prefix = self.recent, self.prefixes[row]
        if recent is None:
            return False
        seen = new + (prefix.length if prefix else 0)
        needed = new if self.compression.method.scorer.accumulates else min(recent.count, seen)
        return recent.held(row) >= needed

    def __deepcopy__(self, memo: dict[int, Any]) -> CompressedLayer:
        twin = self.__class__.__new__(self.__class__)
        memo[id(self)] = twin
        # The plan points into this layer's tail; the handle belongs to this layer's last forward.
        tail = memo.get(id(self.tail)) or (self.tail and self.tail.clone())
        own = {"_plan": None, "_step": None, "_turn": None, "pending": None, "tail": tail}
        for name, value in self.__dict__.items():
            twin.__dict__[name] = own[name] if name in own else deepcopy(value, memo)
        return twin
