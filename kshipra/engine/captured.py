"""Compiled execution on a GPU: a decode step recorded once as a CUDA graph, and then started by one call.

A graph works on the memory that it was recorded with. So there is one for every number of rows and capacity,
each with keys, values, ids, positions and a mask of its own: caches are moved into it, and columns that are
not stored yet are masked. Never run on a GPU so far, there was none; what surrounds the recording is tested
on a CPU.
"""

from __future__ import annotations

import time
import weakref
from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor

from kshipra.engine.cache import KVCache
from kshipra.engine.stepped import StepModel
from kshipra.errors import InputError
from kshipra.models.base import CausalLM
from kshipra.models.shapes import reason

SHORTEST = 128  # columns of the least capacity; each of the others is twice the one before
MOST_STEPS = 16  # that are kept, those used last: each holds memory of its own
WARM_UPS = 3  # libraries must have set themselves up before recording starts

Pass = Callable[[], Tensor]
Recorder = Callable[[Pass, torch.device], tuple[Callable[[], object], Tensor]]


def record(run: Pass, device: torch.device) -> tuple[Callable[[], object], Tensor]:
    """`run` on `device` recorded as a CUDA graph: what replays it, and the tensor that every replay writes
    anew."""
    with torch.cuda.device(device):
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM_UPS):
                run()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            written = run()
    return graph.replay, written


def capacity_of(columns: int) -> int:
    """The least capacity that holds `columns`."""
    return max(SHORTEST, 1 << (columns - 1).bit_length())


class Step:
    """One recorded pass of one column in each of `rows`, over keys and values (B, G, capacity, D) that lie
    here for the cache that uses them last."""

    def __init__(self, model: CausalLM, rows: int, capacity: int, recorder: Recorder) -> None:
        spec, device = model.spec, model.device
        self.ids, self.positions = (torch.zeros(rows, 1, dtype=torch.long, device=device) for _ in range(2))
        self.column = torch.zeros(1, dtype=torch.long, device=device)
        self.mask = torch.ones(rows, 1, 1, capacity, dtype=torch.bool, device=device)
        shape = (rows, spec.kv_heads, capacity, spec.head_size)
        dtype = getattr(torch, spec.dtype)
        self.layers = [
            (torch.zeros(shape, dtype=dtype, device=device), torch.zeros(shape, dtype=dtype, device=device))
            for _ in range(spec.layers)
        ]
        self.columns = 0  # as KeyValues; where the new column goes, `column` says
        self._user: Callable[[], KVCache | None] = lambda: None
        self._replay, self._logits = recorder(
            lambda: model.forward(self.ids, self.positions, self.mask, self, 1),  # (B, 1, V)
            device,
        )

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """As KeyValues.append, but all columns come back: the mask tells which are stored."""
        keys, values = self.layers[layer]
        keys.index_copy_(2, self.column, k)
        values.index_copy_(2, self.column, v)
        return keys, values

    def logits(self, ids: Tensor, positions: Tensor, mask: Tensor | None, cache: KVCache) -> Tensor:
        """(B, 1, V), a copy that the next step leaves alone."""
        self._take(cache)
        end = cache.columns + 1
        self.ids.copy_(ids)
        self.positions.copy_(positions)
        self.column.fill_(cache.columns)
        self.mask[..., :end] = True if mask is None else mask
        self.mask[..., end:] = False
        self._replay()
        return self._logits.clone()

    def _take(self, cache: KVCache) -> None:
        """Have the keys and values of `cache` lie here. A cache that was here before gets its own again."""
        if cache.lies_in(self.layers):
            return
        before = self._user()
        if before is not None and before.lies_in(self.layers):
            before.move([(torch.empty_like(keys), torch.empty_like(values)) for keys, values in self.layers])
        cache.move(self.layers)
        self._user = weakref.ref(cache)


class CapturedModel(StepModel):
    """`model`, one of ours on a GPU, with decode passes that are replayed. `compile_s` is what recording took
    so far. Raises InputError where this GPU refuses."""

    def __init__(self, model: CausalLM, *, recorder: Recorder = record) -> None:
        super().__init__(model)
        self._recorder = recorder
        self._steps: OrderedDict[tuple[int, int], Step] = OrderedDict()

    def prepare(self, rows: int, columns: int) -> None:
        """Record what a run of `rows` needs until they have `columns`, before its clock starts."""
        capacity = SHORTEST
        while capacity <= capacity_of(columns):
            self._recorded(rows, capacity)
            capacity *= 2

    def _step(self, ids: Tensor, positions: Tensor, mask: Tensor | None, cache: KVCache) -> Tensor:
        return self._recorded(len(ids), cache.columns + 1).logits(ids, positions, mask, cache)

    def _recorded(self, rows: int, columns: int) -> Step:
        key = rows, capacity_of(columns)
        if key not in self._steps:
            started_s = time.perf_counter()
            try:
                with torch.inference_mode():
                    self._steps[key] = Step(self.model, *key, self._recorder)
            except RuntimeError as error:
                raise InputError(
                    f"Compiled execution is unavailable: the step cannot be recorded here ({reason(error)}); "
                    "choose eager."
                ) from error
            self.compile_s += time.perf_counter() - started_s
        self._steps.move_to_end(key)
        while len(self._steps) > MOST_STEPS:
            self._steps.popitem(last=False)
        return self._steps[key]
