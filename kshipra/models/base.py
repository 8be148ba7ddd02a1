"""What a model is to the engine, and the one place where attention meets the cache.

Refuses to know what a prompt, a pad or a mode is: positions and mask arrive as tensors.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kshipra.types import ModelSpec


class KeyValues(Protocol):
    """Where a pass leaves its keys and values; `kshipra.engine.cache.KVCache` is one."""

    columns: int  # stored before this pass

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store k, v (B, G, T, D) behind what `layer` has, and give all of it back, oldest first (B, G, S,
        D)."""


class CausalLM(Protocol):
    """A decoder-only model as the engine uses it: no state of its own, so that runs cannot leak into each
    other."""

    spec: ModelSpec
    eos_ids: frozenset[int]

    @property
    def device(self) -> torch.device:
        """Where its weights are."""

    def forward(
        self, ids: Tensor, positions: Tensor, mask: Tensor | None, cache: KeyValues | None, keep: int
    ) -> Tensor:
        """ids (B, T) and positions (B, T) to the logits of the last `keep` columns (B, keep, V).

        mask (B, 1, T, S) is True where a query may look; None stands for plain causal order over rows without
        pads, and is given only where T is 1 or nothing was stored before.
        """


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, layer: int, mask: Tensor | None, cache: KeyValues | None
) -> Tensor:
    """Append k, v (B, G, T, D) to the cache and attend over all that is stored: q (B, H, T, D) to (B * T,
    H * D).

    Queries and keys come in already rotated, so the order is rotate, append, attend, here and nowhere else.
    """
    if cache is not None:
        k, v = cache.append(layer, k, v)  # (B, G, S, D)
    rows, heads, columns, size = q.shape
    groups = k.shape[1]
    if columns == 1 and groups < heads:
        # The heads that share keys become the queries of one head: the same sums without repeating K and V.
        q = q.reshape(rows, groups, heads // groups, size)  # (B, G, H/G, D)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return out.reshape(rows, heads * size)
    causal = mask is None and columns > 1
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=groups < heads
    )  # (B, H, T, D)
    return out.transpose(1, 2).reshape(rows * columns, heads * size)


class Linear(nn.Module):
    """x (R, inputs) @ weight + bias with the weight stored (inputs, outputs).

    One-row products read such a weight 5 to 25 % faster on a CPU than the (outputs, inputs) of nn.Linear.
    """

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(outputs), requires_grad=False) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight if self.bias is None else torch.addmm(self.bias, x, self.weight)
