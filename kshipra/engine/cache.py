"""Keys and values of the past, preallocated in growing steps. Refuses to know rows' lengths: that is
geometry's."""

from __future__ import annotations

import torch
from torch import Tensor

GROWTH_COLUMNS = 128


class KVCache:
    """Per layer K and V of shape (B, G, capacity, D), of which the first `columns` are stored.

    A pass appends to every layer and then calls `advance` once. Capacity grows by GROWTH_COLUMNS at a time,
    so that a step seldom allocates and little is held that is not used.
    """

    def __init__(self) -> None:
        self.columns = 0
        self._layers: list[tuple[Tensor, Tensor]] = []

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store k, v (B, G, T, D) behind what `layer` has, and give all of it back, oldest first (B, G, S,
        D)."""
        end = self.columns + k.shape[2]
        if layer == len(self._layers):
            self._layers.append((_room(k, end), _room(v, end)))
        keys, values = self._layers[layer]
        if end > keys.shape[2]:
            keys, values = _grown(keys, self.columns, end), _grown(values, self.columns, end)
            self._layers[layer] = (keys, values)
        keys[:, :, self.columns : end] = k
        values[:, :, self.columns : end] = v
        return keys[:, :, :end], values[:, :, :end]

    def reserve(self, columns: int) -> list[tuple[Tensor, Tensor]]:
        """Room for `columns` more in every layer, for who writes there himself: the whole K and V (B, G,
        capacity, D)."""
        end = self.columns + columns
        for layer, (keys, values) in enumerate(self._layers):
            if end > keys.shape[2]:
                self._layers[layer] = (_grown(keys, self.columns, end), _grown(values, self.columns, end))
        return self._layers

    def advance(self, columns: int) -> None:
        """The pass is over: what every layer appended is now stored."""
        self.columns += columns

    def crop(self, columns: int) -> None:
        """Forget all but the first `columns`."""
        assert columns <= self.columns
        self.columns = columns

    @property
    def held_bytes(self) -> int:
        """Bytes of the real tensors."""
        return sum(k.nbytes + v.nbytes for k, v in self._layers)

    @property
    def used_bytes(self) -> int:
        """Bytes of the stored columns, pads included."""
        return sum((k.nbytes + v.nbytes) // k.shape[2] * self.columns for k, v in self._layers)


def _room(new: Tensor, columns: int) -> Tensor:
    capacity = -(-columns // GROWTH_COLUMNS) * GROWTH_COLUMNS
    rows, groups, _, size = new.shape
    return torch.empty(rows, groups, capacity, size, dtype=new.dtype, device=new.device)


def _grown(old: Tensor, stored: int, columns: int) -> Tensor:
    room = _room(old, columns)
    room[:, :, :stored] = old[:, :, :stored]
    return room
