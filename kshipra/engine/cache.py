"""Keys and values of the past, preallocated in growing steps. Refuses to know rows' lengths: that is
geometry's."""

from __future__ import annotations

from collections.abc import Sequence

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

    def open(self, layers: int, like: Tensor) -> None:
        """Room in `layers` that have none yet, for columns as those of `like` (B, G, T, D)."""
        if not self._layers:
            self._layers = [(_room(like, like.shape[2]), _room(like, like.shape[2])) for _ in range(layers)]

    def reserve(self, columns: int) -> list[tuple[Tensor, Tensor]]:
        """Room for `columns` more in every layer, for who writes there himself: the whole K and V (B, G,
        capacity, D)."""
        end = self.columns + columns
        for layer, (keys, values) in enumerate(self._layers):
            if end > keys.shape[2]:
                self._layers[layer] = (_grown(keys, self.columns, end), _grown(values, self.columns, end))
        return self._layers

    def lies_in(self, layers: Sequence[tuple[Tensor, Tensor]]) -> bool:
        """Whether these very tensors are its K and V."""
        return bool(self._layers) and self._layers[0][0] is layers[0][0]

    def move(self, layers: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Copy what is stored into other K and V (B, G, capacity, D), and have them from now on."""
        for new, old in zip(layers, self._layers, strict=True):
            for mine, theirs in zip(new, old, strict=True):
                mine[:, :, : self.columns] = theirs[:, :, : self.columns]
        self._layers = list(layers)

    def advance(self, columns: int) -> None:
        """The pass is over: what every layer appended is now stored."""
        self.columns += columns

    def shift(self, columns: int) -> None:
        """Forget the first `columns`, which are padding in every row; fewer than 0: open so many in front."""
        kept, self.columns = self.columns, self.columns - columns
        for layer, (keys, values) in enumerate(self._layers):
            self._layers[layer] = tuple(_shifted(old, kept, columns) for old in (keys, values))

    def join(self, place: int, other: KVCache) -> None:
        """Copy the only row of `other` into `place`, to end in the same column; behind the last row, to a new
        one."""
        for layer, (new, old) in enumerate(zip(other._layers, self._layers, strict=True)):
            if place == old[0].shape[0]:
                old = self._layers[layer] = tuple(_with_another_row(tensor) for tensor in old)
            for mine, theirs in zip(old, new, strict=True):
                mine[place, :, self.columns - other.columns : self.columns] = theirs[0, :, : other.columns]

    def copied(self, row: int, columns: Tensor) -> KVCache:
        """A cache of that row alone, with those of its stored columns that the mask `columns` (S) names,
        and no more room than they need."""
        other = KVCache()
        other._layers = [
            (
                keys[row : row + 1, :, : self.columns][:, :, columns],
                values[row : row + 1, :, : self.columns][:, :, columns],
            )
            for keys, values in self._layers
        ]
        other.columns = int(columns.sum())
        return other

    @classmethod
    def starting(cls, parts: Sequence[tuple[int, KVCache | None]]) -> KVCache:
        """A row for each of `parts`, which starts with that many columns of another cache's only row; all
        end in the same column. Empty where every part is."""
        cache = cls()
        cache.columns = max(length for length, _ in parts)
        some = next((other for _, other in parts if other is not None), None)
        for layer in range(len(some._layers) if some is not None else 0):
            rooms = tuple(
                _room(like[:1].expand(len(parts), -1, -1, -1), cache.columns).zero_()
                for like in some._layers[layer]
            )
            for row, (length, other) in enumerate(parts):
                for room, old in zip(
                    rooms, other._layers[layer] if other is not None else (), strict=other is not None
                ):
                    room[row, :, cache.columns - length : cache.columns] = old[0, :, :length]
            cache._layers.append(rooms)
        return cache

    def keep(self, places: list[int]) -> None:
        """Forget all rows but those in `places`."""
        self._layers = [(keys[places], values[places]) for keys, values in self._layers]

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


def _shifted(old: Tensor, stored: int, columns: int) -> Tensor:
    """`old` without its first `columns`, or with -`columns` zeros in front: in the same memory if it fits."""
    left = old[:, :, max(columns, 0) : stored].clone()  # a copy onto itself is undefined
    end = stored - columns
    room = old if end <= old.shape[2] else _room(old, end)
    room[:, :, max(-columns, 0) : end] = left
    room[:, :, : max(-columns, 0)] = 0.0
    return room


def _with_another_row(old: Tensor) -> Tensor:
    return torch.cat((old, torch.zeros_like(old[:1])))
