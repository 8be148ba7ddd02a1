"""One run's state and its one step: forward, sample, measure. Modes decide which rows share a pass; text,
charts and results are folds over the events that come out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from kshipra.costs import pass_flops
from kshipra.engine import geometry
from kshipra.engine.cache import KVCache
from kshipra.engine.layout import HONEST, Layout
from kshipra.engine.meter import MemoryMeter
from kshipra.engine.sampling import Candidates, candidates, next_ids
from kshipra.models.base import CausalLM
from kshipra.text import Detokenizer, StopFilter, Tokenizer
from kshipra.types import FinishReason, NewToken, Request, StepEvent

if TYPE_CHECKING:
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

    def take(self, id: int, among: Candidates) -> NewToken:
        """Append a new id and decide whether the row has ended; an end token counts, but has no text."""
        self.ids.append(id)
        ended = id in self._eos_ids
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
        return NewToken(self.request.row, id, text, self.finish_reason, *among)


class Batch:
    """Rows that share passes: their ids and `valid` (B, S), and how many columns the cache already has."""

    def __init__(
        self, rows: Sequence[Row], *, cache: KVCache | None, pad_id: int, device: torch.device
    ) -> None:
        self.rows = list(rows)
        self.cache: KVCache | GenerateCache | None = cache
        self.ids, self.valid = geometry.left_pad([row.ids for row in rows], pad_id, device)  # 2 x (B, S)
        self.pads = [self.ids.shape[1] - len(row.ids) for row in rows]  # in front, as long as the row runs
        self.dense = not any(self.pads)  # no pads: plain causal order needs no mask
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

    def append(self, ids: torch.Tensor) -> None:
        """The next column: `ids` (B), real for rows that run; those that have ended are padding from now
        on."""
        live = [row.finish_reason is None for row in self.rows]
        self.ids = torch.cat((self.ids, ids[:, None]), dim=1)  # (B, S + 1)
        self.valid = torch.nn.functional.pad(self.valid, (0, 1), value=True)  # (B, S + 1)
        if not all(live):
            self.valid &= torch.tensor(live, device=self.valid.device)[:, None]
            self.dense = False


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
    ) -> None:
        self.model, self.tokenizer, self.device = model, tokenizer, device
        self.layout, self.observe, self.choose = layout, observe, choose
        self.requests = [request for request in requests if request.params.max_new_tokens > 0]
        self.meter = MemoryMeter(device)
        self.busy_s = 0.0  # the run's own clock; whoever drives the mode keeps it
        self._resumed_s = time.perf_counter()
        self._passes = 0

    def batch(self, requests: Sequence[Request], *, cached: bool) -> Batch:
        """A new batch whose prompts are still to be read; with `cached`, later passes read the new tokens
        only."""
        context = self.model.spec.context
        rows = [Row(request, self.tokenizer, self.model.eos_ids, context) for request in requests]
        cache = self.layout.cache() if cached else None
        return Batch(rows, cache=cache, pad_id=self.tokenizer.pad_id, device=self.device)

    @torch.inference_mode()
    def step(self, batch: Batch) -> StepEvent:
        """One pass over the columns that the cache does not have, and one new token for every running row."""
        started_s = time.perf_counter()
        logits = self._forward(batch, batch.unread)[:, -1]  # (B, V)
        ids = self.choose(logits, [(row.params, row.ids, row.generator) for row in batch.rows])  # (B)
        ids.tolist()  # waits for the device
        return self.took(batch, logits, ids, time.perf_counter() - started_s)

    @torch.inference_mode()
    def took(self, batch: Batch, logits: torch.Tensor, ids: torch.Tensor, elapsed_s: float) -> StepEvent:
        """The event of a pass that is over, whoever ran it: it took the next ids (B) from its last logits
        (B, V), and `elapsed_s` until they were on the host."""
        self.pause()  # looking at a pass is not part of it
        chosen, among = ids.tolist(), candidates(logits, ids)
        for row, own in zip(batch.rows, logits, strict=True):
            if row.finish_reason is None:
                self.observe(row.request.row, len(row.ids) - len(row.request.prompt_ids), own)
        self.resume()
        running = batch.running
        tokens = [
            row.take(id, best)
            for row, id, best in zip(batch.rows, chosen, among, strict=True)
            if row.finish_reason is None
        ]
        event = self._event(batch, running, batch.unread, tuple(tokens), elapsed_s)
        batch.append(ids)
        return event

    @torch.inference_mode()
    def read(self, batch: Batch, columns: int) -> StepEvent:
        """One pass over the next `columns` that the cache does not have, short of the last: no new token."""
        started_s = time.perf_counter()
        self._forward(batch, columns).sum().item()  # waits for the device
        elapsed_s = time.perf_counter() - started_s
        return self._event(batch, batch.running, columns, (), elapsed_s)

    def _forward(self, batch: Batch, columns: int) -> torch.Tensor:
        """Logits (B, 1, V) of the last of `columns` new columns T behind those that are stored."""
        end = batch.stored + columns
        valid = batch.valid[:, :end]
        plain = batch.dense and (columns == 1 or batch.stored == 0)
        return self.model.forward(
            batch.ids[:, batch.stored : end],
            self.layout.positions(valid, columns),
            None if plain else self.layout.attention_mask(valid, columns),
            batch.cache,
            1,
        )

    def _event(
        self,
        batch: Batch,
        running: list[Row],
        columns: int,
        new_tokens: tuple[NewToken, ...],
        elapsed_s: float,
    ) -> StepEvent:
        """Host work after a pass, outside its measured time: what it took and what memory there is."""
        rows, stored = len(batch.rows), batch.stored + columns
        processed = sum(
            min(columns, stored - pads)
            for row, pads in zip(batch.rows, batch.pads, strict=True)
            if row in running and pads < stored
        )
        if batch.cache is not None:
            batch.cache.advance(columns)
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
            kv_bytes=batch.cache.used_bytes if batch.cache is not None else 0,
            kv_held_bytes=batch.cache.held_bytes if batch.cache is not None else 0,
            resident_bytes=resident_bytes,
            peak_extra_bytes=peak_extra_bytes,
            memory_method=self.meter.method,
            flops=pass_flops(self.model.spec, rows=rows, columns=columns, stored=stored, kept=1),
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
