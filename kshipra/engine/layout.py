"""What gives a step its positions, its mask and its cache: the honest ones, or for one run of the bug lab a
classic fault in the place of one of them (facts A4 and B7). Refuses to know modes and rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from kshipra.engine import geometry
from kshipra.engine.cache import KVCache


class Layout(NamedTuple):
    positions: Callable[[Tensor, int], Tensor]  # valid (B, S), T -> (B, T)
    attention_mask: Callable[[Tensor, int], Tensor]  # valid (B, S), T -> (B, 1, T, S)
    cache: type[KVCache]

    def placed(self, valid: Tensor, columns: int, *, dense: bool) -> tuple[Tensor, Tensor | None]:
        """Positions and mask of the last `columns` T; None where plain causal order over `dense` rows, which
        have no pads, says it all (see CausalLM.forward)."""
        plain = dense and columns in (1, valid.shape[1])
        return self.positions(valid, columns), None if plain else self.attention_mask(valid, columns)


HONEST = Layout(geometry.positions, geometry.attention_mask, KVCache)


def pads_counted(valid: Tensor, columns: int) -> Tensor:
    """Positions 0 to S - 1 whatever is padding: a short row starts at the number of its pads."""
    return torch.arange(valid.shape[1], device=valid.device).expand(valid.shape)[:, -columns:]


def restarted(valid: Tensor, columns: int) -> Tensor:
    """`arange(T)` for the T new columns, as if nothing were stored: every decoded token stands at 0."""
    return geometry.positions(valid[:, -columns:], columns)


def pads_visible(valid: Tensor, columns: int) -> Tensor:
    """Causal order alone: nobody remembers which columns are pads."""
    return geometry.attention_mask(torch.ones_like(valid), columns)


class NewBeforeOld(KVCache):
    """Hands out new keys and values before the stored ones, as `cat((new, old))` does."""

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        k_all, v_all = super().append(layer, k, v)
        columns = k.shape[2]
        return k_all.roll(columns, dims=2), v_all.roll(columns, dims=2)


FAULTS: dict[str, Layout] = {
    "pads_counted": HONEST._replace(positions=pads_counted),
    "restarted": HONEST._replace(positions=restarted),
    "pads_visible": HONEST._replace(attention_mask=pads_visible),
    "new_before_old": HONEST._replace(cache=NewBeforeOld),
}


def layout_named(fault: str | None) -> Layout:
    """The honest layout, or the one with that fault planted."""
    return FAULTS[fault] if fault is not None else HONEST
