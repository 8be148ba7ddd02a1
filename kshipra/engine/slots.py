"""A batch whose rows come and go. All rows end in its last column, as in every batch, so a row that joins
brings its columns right-aligned, and the one that has ended before it in that place is gone. Refuses to know
when rows should join: that is the mode's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from kshipra.engine.job import Batch

SLACK_COLUMNS = 64  # padding in front of every row that is put up with, so that columns are seldom moved


@torch.inference_mode()
def join(batch: Batch, other: Batch) -> None:
    """Give the only row of `other`, whose prompt has been read, the place of a row that has ended, else a new
    one."""
    [row], columns = other.rows, other.ids.shape[1]
    _shift(batch, min(0, batch.ids.shape[1] - columns))
    ended = (place for place, old in enumerate(batch.rows) if old.finish_reason is not None)
    place = next(ended, len(batch.rows))
    assert batch.cache is not None
    assert other.cache is not None
    batch.cache.join(place, other.cache)
    if place == len(batch.rows):
        batch.rows.append(row)
        batch.pads.append(0)
        batch.untaken.append(1)  # the token that its prompt's last pass has chosen
        batch.ids = F.pad(batch.ids, (0, 0, 0, 1))  # (B + 1, S)
        batch.valid = F.pad(batch.valid, (0, 0, 0, 1))  # (B + 1, S)
    batch.rows[place] = row
    batch.pads[place] = batch.ids.shape[1] - columns
    batch.ids[place, -columns:] = other.ids[0]
    batch.valid[place] = False
    batch.valid[place, -columns:] = True
    tidy(batch)


@torch.inference_mode()
def leave(batch: Batch) -> None:
    """Give up the places of rows that have ended: nobody waits for them."""
    places = [place for place, row in enumerate(batch.rows) if row.finish_reason is None]
    if len(places) == len(batch.rows):
        return
    batch.rows = [batch.rows[place] for place in places]
    batch.pads = [batch.pads[place] for place in places]
    batch.untaken = [batch.untaken[place] for place in places]
    batch.ids, batch.valid = batch.ids[places], batch.valid[places]
    assert batch.cache is not None
    batch.cache.keep(places)
    tidy(batch)


def tidy(batch: Batch) -> None:
    """Drop columns in front that have become padding in every running row, once they are many."""
    running = [pads for row, pads in zip(batch.rows, batch.pads, strict=True) if row.finish_reason is None]
    if running and min(running) >= SLACK_COLUMNS:
        _shift(batch, min(running))
    batch.dense = len(running) == len(batch.rows) and not any(batch.pads)


def _shift(batch: Batch, columns: int) -> None:
    """Drop the first `columns`; fewer than 0: pads in front."""
    if columns == 0:
        return
    batch.ids, batch.valid = F.pad(batch.ids, (-columns, 0)), F.pad(batch.valid, (-columns, 0))
    batch.pads = [pads - columns for pads in batch.pads]
    assert batch.cache is not None
    batch.cache.shift(columns)
