"""One run's state and its one step: forward, sample, measure. Modes decide which rows share a pass; text,
charts and results are folds over the events that come out.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import torch

from kshipra.costs import pass_flops
from kshipra.engine import geometry, slots
from kshipra.engine.cache import KVCache
from kshipra.engine.layout import HONEST, Layout
from kshipra.engine.meter import MemoryMeter
from kshipra.engine.prefix import PrefixCache
from kshipra.engine.sampling import Candidates, candidates, next_ids
from kshipra.models.base import CausalLM
from kshipra.text import Detokenizer, StopFilter, Tokenizer
from kshipra.types import UNBOUNDED, Batching, FinishReason, NewToken, Request, StepEvent

if TYPE_CHECKING:
    from kshipra.engine.drafts import Drafter
    from kshipra.models.hf import GenerateCache

Observer = Callable[[int, int, torch.Tensor], None]  # row, how many tokens it has, its logits (V)
Chooser = Callable[..., torch.Tensor]  # logits (B, V) and rows to the next ids (B), as `next_ids` does


def nobody(row: int, place: int, logits: torch.Tensor) -> None:
    """An Observer that looks away."""


class Row:
    """One request under way: its ids, its random stream, and the text that may be shown."""

    def __init__(
        self, request: Request, tokenizer: Tokenizer, eos_ids: frozenset[int], context: int | None
    ) -> None:
        params = request.params
        self.request, self.params = request, params
        self.ids = list(request.prompt_ids)
        self.generator = torch.Generator()
        if params.seed is not None:
            self.generator.manual_seed(params.seed)
        self.finish_reason: FinishReason | None = None
        self._eos_ids = frozenset() if params.ignore_eos else eos_ids
        self._context = context
        self._detokenizer = Detokenizer(tokenizer, request.prompt_ids)
        self._stop = StopFilter(params.stop)

    @property
    def room(self) -> int:
        """Guesses that a pass may check behind the newest id, which give one token more: none past the row's
        limit or the model's context, none for a row that has ended."""
        if self.finish_reason is not None:
            return 0
        left = self.params.max_new_tokens - (len(self.ids) - len(self.request.prompt_ids)) - 1
        return left if self._context is None else min(left, self._context - len(self.ids))

    def ends_with(self, id: int) -> bool:
        return id in self._eos_ids

    def take(self, id: int, among: Candidates, *, guessed: bool) -> NewToken:
        """Append a new id and decide whether the row has ended; an end token counts, but has no text."""
        self.ids.append(id)
        ended = self.ends_with(id)
        text = "" if ended else self._stop.push(self._detokenizer.push(id))
        new_tokens = len(self.ids) - len(self.request.prompt_ids)
        if ended or self._stop.stopped:
            self.finish_reason = "stop"
        elif new_tokens >= self.params.max_new_tokens:
            self.finish_reason = "length"
        elif self._context is not None and len(self.ids) > self._context:
            self.finish_reason = "context"  # there is no position to feed this token at
        if self.finish_reason and not self._stop.stopped:
            text += self._stop.push(self._detokenizer.flush())
            self.finish_reason = "stop" if self._stop.stopped else self.finish_reason
            text += self._stop.flush()
        return NewToken(self.request.row, id, text, self.finish_reason, *among, guessed)


class Batch:
    """Rows that share passes: their ids and `valid` (B, S), and how many columns the cache already has."""

    def __init__(
        self,
        rows: Sequence[Row],
        *,
        cache: KVCache | None,
        pad_id: int,
        device: torch.device,
        reused: Sequence[int] | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        """`reused`: how many of each row's first ids `cache` has already, all ending in its last column."""
        self.rows = list(rows)
        self.cache: KVCache | GenerateCache | None = cache
        self.drafter = drafter
        reused = reused or [0] * len(rows)
        self.reused = sum(reused)  # told by the first pass
        starts, rests = zip(
            *((row.ids[:n], row.ids[n:]) for row, n in zip(rows, reused, strict=True)), strict=True
        )
        self.ids, self.valid = (
            torch.cat(parts, dim=1)
            for parts in zip(
                geometry.left_pad(starts, pad_id, device),
                geometry.left_pad(rests, pad_id, device),
                strict=True,
            )
        )  # 2 x (B, S)
        self.pads: list[int] = self.valid.int().argmax(dim=1).tolist()  # in front, as long as the row runs
        self.untaken = [len(rest) for rest in rests]  # ids of each row that no pass has taken
        self.dense = bool(self.valid.all())  # no pads: plain causal order needs no mask
        self.decoding = False  # whether the prompts have been read

    @property
    def stored(self) -> int:
        """Columns that the next pass need not compute again."""
        return self.cache.columns if self.cache is not None else 0

    @property
    def unread(self) -> int:
        """Columns that the next pass has to compute."""
        return self.ids.shape[1] - self.stored

    @property
    def running(self) -> list[Row]:
        return [row for row in self.rows if row.finish_reason is None]

    @property
    def caches(self) -> list[KVCache | GenerateCache]:
        """Its own, and that of a draft model."""
        both = (self.cache, self.drafter.cache if self.drafter is not None else None)
        return [cache for cache in both if cache is not None]

    def read(self, columns: int) -> list[int]:
        """The next `columns` have been through a pass: how many real tokens of each row they held."""
        behind = self.unread - columns
        taken = [max(0, count - behind) for count in self.untaken]
        if self.cache is not None:
            self.cache.advance(columns)
            self.untaken = [count - own for count, own in zip(self.untaken, taken, strict=True)]
        return taken

    def columns_of(self, place: int) -> torch.Tensor:
        """(S) the stored columns that hold the ids of that row; its newest is not stored."""
        valid = self.valid[place, : self.stored]
        return valid & (valid.cumsum(0) < len(self.rows[place].ids))

    def append(self, ids: torch.Tensor) -> None:
        """The next column: `ids` (B), real for rows that run; those that have ended are padding from now
        on."""
        live = [row.finish_reason is None for row in self.rows]
        self.ids = torch.cat((self.ids, ids[:, None]), dim=1)  # (B, S + 1)
        self.valid = torch.nn.functional.pad(self.valid, (0, 1), value=True)  # (B, S + 1)
        self.untaken = [count + 1 for count in self.untaken]
        if not all(live):
            self.valid &= torch.tensor(live, device=self.valid.device)[:, None]
            self.dense = False

    def guess(self, drafts: Sequence[Sequence[int]]) -> int:
        """Columns behind the newest for `drafts`, a few ids a row, the shorter padded behind: how many."""
        width = max(map(len, drafts), default=0)
        if not width:
            return 0
        ids = [[*draft, *[0] * (width - len(draft))] for draft in drafts]
        real = [[place < len(draft) for place in range(width)] for draft in drafts]
        self.ids = torch.cat((self.ids, torch.tensor(ids, device=self.ids.device)), dim=1)
        self.valid = torch.cat((self.valid, torch.tensor(real, device=self.ids.device)), dim=1)
        self.dense &= all(map(all, real))
        self.untaken = [count + len(draft) for count, draft in zip(self.untaken, drafts, strict=True)]
        return width

    def settle(self, guesses: int, accepted: Sequence[int]) -> None:
        """Of the last `guesses` columns, which have been through a pass, keep each row's first `accepted`,
        and append what each row has chosen last."""
        if guesses:
            end = self.ids.shape[1] - guesses + max(accepted)
            self.ids, self.valid = self.ids[:, :end], self.valid[:, :end]
            assert self.cache is not None
            self.cache.crop(end)
            if min(accepted) < max(accepted):
                limits = torch.tensor(accepted, device=self.ids.device)[:, None] + end - max(accepted)
                self.valid = self.valid & (torch.arange(end, device=self.ids.device) < limits)
                self.dense = False
        self.append(torch.tensor([row.ids[-1] for row in self.rows], device=self.ids.device))


class Job:
    """What a mode works with: the requests that want tokens, batches of them, and the step."""

    def __init__(
        self,
        model: CausalLM,
        tokenizer: Tokenizer,
        requests: Sequence[Request],
        device: torch.device,
        *,
        layout: Layout = HONEST,
        observe: Observer = nobody,
        choose: Chooser = next_ids,
        batching: Batching = UNBOUNDED,
        prefixes: PrefixCache | None = None,
        draft: CausalLM | None = None,
    ) -> None:
        self.prefixes, self.draft = prefixes, draft
        self.batching = batching
        self.model, self.tokenizer, self.device = model, tokenizer, device
        self.layout, self.observe, self.choose = layout, observe, choose
        self.requests = deque(request for request in requests if request.params.max_new_tokens > 0)
        self._rows: WeakValueDictionary[int, Row] = WeakValueDictionary()  # as long as a batch holds them
        self.meter = MemoryMeter(device)
        self.busy_s = 0.0  # the run's own clock; whoever drives the mode keeps it
        self._resumed_s = time.perf_counter()
        self._passes = 0

    def batch(self, requests: Sequence[Request], *, cached: bool, drafter: Drafter | None = None) -> Batch:
        """A new batch whose prompts are still to be read; with `cached`, later passes read the new tokens
        only, and what `drafter` guesses."""
        context = self.model.spec.context
        rows = [Row(request, self.tokenizer, self.model.eos_ids, context) for request in requests]
        self._rows.update((row.request.row, row) for row in rows)
        pad_id = self.tokenizer.pad_id
        if self.prefixes is not None and cached:
            parts = [self.prefixes.longest(row.ids, row.request.scope) for row in rows]
            cache, reused = KVCache.starting(parts), [length for length, _ in parts]
            return Batch(rows, cache=cache, pad_id=pad_id, device=self.device, reused=reused, drafter=drafter)
        cache = self.layout.cache() if cached else None
        return Batch(rows, cache=cache, pad_id=pad_id, device=self.device, drafter=drafter)

    def cancel(self, row: int) -> None:
        """End the request of that number before its next token, wherever it is; one that has ended stays."""
        self.requests = deque(request for request in self.requests if request.row != row)
        own = self._rows.get(row)
        if own is not None and own.finish_reason is None:
            own.finish_reason = "cancelled"

    def join(self, batch: Batch, other: Batch) -> None:
        """Let the only row of `other`, whose prompt has been read, run in `batch`."""
        slots.join(batch, other)

    def leave(self, batch: Batch) -> None:
        """Give up the places of rows that have ended."""
        slots.leave(batch)

    @torch.inference_mode()
    def step(self, batch: Batch) -> StepEvent:
        """One pass over the columns that the cache does not have, and a new token for every running row.

        Once the prompts have been read, the batch's drafter guesses a few ids of each row behind its newest:
        then there are as many new tokens as guess and choice agree on, and one more. They are those that
        steps without guesses would choose, with the same draws of the row's seed: a guess x is accepted with
        the probability p(x) that it is drawn, else the draw is the token, which is rejection sampling of a
        draft that is sure of itself (Leviathan et al. 2023).
        """
        started_s = time.perf_counter()
        guessing = batch.drafter is not None and batch.decoding
        drafts = batch.drafter.guess(batch) if guessing else ()
        draft_s = time.perf_counter() - started_s if guessing else 0.0
        guesses = batch.guess(drafts)
        logits = self._forward(batch, batch.unread, keep=1 + guesses)  # (B, keep, V)
        chosen = self._choose(batch, logits, drafts)
        elapsed_s = time.perf_counter() - started_s
        return self.took(batch, logits, chosen, elapsed_s, drafts=drafts, draft_s=draft_s)

    @torch.inference_mode()
    def took(
        self,
        batch: Batch,
        logits: torch.Tensor,
        chosen: Sequence[Sequence[int]],
        elapsed_s: float,
        *,
        drafts: Sequence[Sequence[int]] = (),
        draft_s: float = 0.0,
    ) -> StepEvent:
        """The event of a pass that is over, whoever ran it: its last logits (B, keep, V) chose some ids of
        each row, one more than of its `drafts` came true, and `elapsed_s` went by until they were on the
        host, of it `draft_s` for guessing."""
        running, guesses = batch.running, logits.shape[1] - 1
        drafted = tuple(len(draft) for row, draft in zip(batch.rows, drafts, strict=False) if row in running)
        tokens = self._taken(batch, logits, chosen)
        event = self._event(
            batch,
            batch.unread,
            running,
            tokens,
            elapsed_s,
            kept=1 + guesses,
            drafted=drafted,
            draft_s=draft_s,
        )
        self._remember(batch, running, is_prompt=event.phase == "prefill")
        batch.settle(guesses, [len(ids) - 1 for ids in chosen])
        return event

    def _remember(self, batch: Batch, running: Sequence[Row], *, is_prompt: bool) -> None:
        """Keep what later prompts may go on from: prompts when they have been read, and whole texts."""
        if self.prefixes is None or batch.cache is None:
            return
        for place, row in enumerate(batch.rows):
            if row in running and (is_prompt or row.finish_reason is not None):
                cache = batch.cache.copied(place, batch.columns_of(place))
                self.prefixes.keep(row.ids[:-1], cache, row.request.scope)

    def _choose(self, batch: Batch, logits: torch.Tensor, drafts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Of logits (B, keep, V) each row's ids: the next one, and on as long as its draft agrees."""
        chosen: list[list[int]] = [[] for _ in batch.rows]
        places = list(range(len(batch.rows)))
        for column in range(logits.shape[1]):
            asked = [(batch.rows[place], chosen[place]) for place in places]
            seen = [(row.params, row.ids + more if more else row.ids, row.generator) for row, more in asked]
            own = logits[:, column] if len(places) == len(batch.rows) else logits[places, column]
            ids = self.choose(own, seen).tolist()  # waits for the device
            for place, id in zip(places, ids, strict=True):
                chosen[place].append(id)
            places = [
                place
                for place in places
                if drafts and [chosen[place][-1]] == drafts[place][column : column + 1]
            ]
            if not places:
                break
        return chosen

    def _taken(
        self, batch: Batch, logits: torch.Tensor, chosen: Sequence[Sequence[int]]
    ) -> tuple[NewToken, ...]:
        """Each row's chosen ids as new tokens of those that run, up to the one that ends a row; logits
        (B, keep, V) chose them."""
        self.pause()  # looking at a pass is not part of it
        used = torch.cat([own[: len(ids)] for own, ids in zip(logits, chosen, strict=True)])
        flat = torch.tensor(list(chain.from_iterable(chosen)), device=logits.device)
        among = iter(zip(candidates(used, flat), used, strict=True))
        tokens = []
        for row, ids in zip(batch.rows, chosen, strict=True):
            for left, id, (best, own) in zip(
                range(len(ids))[::-1], ids, list(islice(among, len(ids))), strict=True
            ):
                if row.finish_reason is None:
                    self.observe(row.request.row, len(row.ids) - len(row.request.prompt_ids), own)
                    self.resume()
                    tokens.append(row.take(id, best, guessed=left > 0))
                    self.pause()
        self.resume()
        return tuple(tokens)

    @torch.inference_mode()
    def read(self, batch: Batch, columns: int) -> StepEvent:
        """One pass over the next `columns` that the cache does not have, short of the last: no new token."""
        started_s = time.perf_counter()
        self._forward(batch, columns).sum().item()  # waits for the device
        elapsed_s = time.perf_counter() - started_s
        return self._event(batch, columns, batch.running, (), elapsed_s)

    def _forward(self, batch: Batch, columns: int, keep: int = 1) -> torch.Tensor:
        """Logits (B, keep, V) of the last of `columns` new columns T behind those that are stored."""
        end = batch.stored + columns
        valid = batch.valid[:, :end]
        positions, mask = self.layout.placed(valid, columns, dense=batch.dense)
        return self.model.forward(batch.ids[:, batch.stored : end], positions, mask, batch.cache, keep)

    def _event(
        self,
        batch: Batch,
        columns: int,
        running: Sequence[Row],
        new_tokens: tuple[NewToken, ...],
        elapsed_s: float,
        *,
        kept: int = 1,
        drafted: tuple[int, ...] = (),
        draft_s: float = 0.0,
    ) -> StepEvent:
        """Host work after a pass over the next `columns`, outside its measured time: what it took and what
        memory there is."""
        rows, stored = len(batch.rows), batch.stored + columns
        taken = batch.read(columns)
        processed = sum(own for row, own in zip(batch.rows, taken, strict=True) if row in running)
        reused, batch.reused = batch.reused, 0
        phase = "decode" if batch.decoding else "prefill"
        batch.decoding = bool(new_tokens)
        self.pause()
        resident_bytes, peak_extra_bytes = self.meter.read()
        self.resume()
        self._passes += 1
        return StepEvent(
            index=self._passes - 1,
            phase=phase,
            rows=tuple(row.request.row for row in running),
            new_tokens=new_tokens,
            processed_tokens=processed,
            pad_tokens=rows * columns - processed,
            elapsed_s=elapsed_s,
            at_s=self.clock_s(),
            kv_bytes=sum(cache.used_bytes for cache in batch.caches),
            kv_held_bytes=sum(cache.held_bytes for cache in batch.caches),
            resident_bytes=resident_bytes,
            peak_extra_bytes=peak_extra_bytes,
            memory_method=self.meter.method,
            flops=pass_flops(self.model.spec, rows=rows, columns=columns, stored=stored, kept=kept),
            drafted_tokens=sum(drafted),
            row_drafted_tokens=drafted,
            draft_s=draft_s,
            reused_tokens=reused,
        )

    def clock_s(self) -> float:
        """Seconds that the run has worked so far."""
        return self.busy_s + time.perf_counter() - self._resumed_s

    def pause(self) -> None:
        """Stop the run's clock, before somebody else has the thread."""
        self.busy_s = self.clock_s()
        self._resumed_s = time.perf_counter()

    def resume(self) -> None:
        """Go on with the run's clock."""
        self._resumed_s = time.perf_counter()
