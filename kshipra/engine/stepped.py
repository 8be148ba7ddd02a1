"""What every compiled model is to the engine: a model whose decode passes are done in another way."""

from __future__ import annotations

import torch
from torch import Tensor

from kshipra.engine.cache import KVCache
from kshipra.models.base import CausalLM, KeyValues


class StepModel:
    """`model` with passes of one column, and perhaps of many, of its own; `compile_s` is what making them
    took."""

    def __init__(self, model: CausalLM) -> None:
        self.model, self.spec, self.eos_ids = model, model.spec, model.eos_ids
        self.compile_s = 0.0

    @property
    def device(self) -> torch.device:
        return self.model.device

    def forward(
        self, ids: Tensor, positions: Tensor, mask: Tensor | None, cache: KeyValues | None, keep: int
    ) -> Tensor:
        """As CausalLM.forward. No cache, and one that is not quite KVCache (the bug lab's), is left to the
        model itself."""
        if type(cache) is not KVCache:
            return self.model.forward(ids, positions, mask, cache, keep)
        if cache.columns and ids.shape[1] == 1:
            return self._step(ids, positions, mask, cache)
        return self._columns(ids, positions, mask, cache, keep)

    def prepare(self, rows: int, columns: int) -> None:
        """Make what a run of `rows` needs until they have `columns`, before its clock starts."""

    def _step(self, ids: Tensor, positions: Tensor, mask: Tensor | None, cache: KVCache) -> Tensor:
        """Logits (B, 1, V) of one new column, whose keys and values are stored behind what `cache` has."""
        raise NotImplementedError

    def _columns(
        self, ids: Tensor, positions: Tensor, mask: Tensor | None, cache: KVCache, keep: int
    ) -> Tensor:
        """Logits (B, keep, V) of the last of T new columns, all stored behind what `cache` has."""
        return self.model.forward(ids, positions, mask, cache, keep)
