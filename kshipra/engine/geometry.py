"""The one source of positions and masks: everything follows from `valid` (B, S), which stored columns of
which row hold a real token. Refuses to know token ids: a pad is a pad because of where it is, never because
of what it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def left_pad(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """ids (B, S) and valid (B, S) of rows that all end in the last column, whatever their lengths."""
    width = max(len(row) for row in rows)
    padded = [[pad_id] * (width - len(row)) + list(row) for row in rows]
    ids = torch.tensor(padded, dtype=torch.long, device=device)
    lengths = torch.tensor([len(row) for row in rows], device=device)
    return ids, torch.arange(width, device=device) >= width - lengths[:, None]


def positions(valid: Tensor, columns: int) -> Tensor:
    """(B, T) of the last `columns` T: a token's position is the number of real tokens before it, and a pad's
    is 0, which nobody reads.

    In int32, because some MPS systems cannot sum 64-bit integers.
    """
    return (valid.cumsum(dim=-1, dtype=torch.int32) - 1).clamp_(min=0).long()[:, -columns:]


def attention_mask(valid: Tensor, columns: int) -> Tensor:
    """(B, 1, T, S), True where one of the last `columns` T may look: at real tokens up to itself.

    The diagonal is always True: a pad that sees nothing would give NaN in some kernels, and nobody reads a
    pad.
    """
    stored = valid.shape[1]
    square = torch.ones(columns, stored, dtype=torch.bool, device=valid.device)
    causal = square.tril(stored - columns)  # (T, S)
    itself = causal & square.triu(stored - columns)  # (T, S)
    return ((valid[:, None, :] & causal) | itself)[:, None]  # (B, 1, T, S)
