"""Who guesses the next ids of a batch's rows, for one pass to check them: the protocol, and a smaller model.

Refuses to know how guesses are checked: that is `Job.step`'s, and whatever is guessed, it changes no token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from kshipra.engine.cache import KVCache
from kshipra.engine.layout import HONEST
from kshipra.engine.sampling import next_ids
from kshipra.errors import InputError
from kshipra.models.base import CausalLM

if TYPE_CHECKING:
    from kshipra.engine.job import Batch, Row
    from kshipra.engine.runner import Engine

FIRST_GUESSED, MOST_GUESSED = 4, 8  # ids a row and pass


class Drafter(Protocol):
    """Guesses for the rows of one batch, whose columns stay where they are as long as it runs."""

    cache: KVCache | None  # of what it has read itself

    def guess(self, batch: Batch) -> list[list[int]]:
        """For each row some ids that may follow its newest: `row.room` at most, and none behind an end."""


def check_draft(engine: Engine, draft: Engine) -> None:
    """Raise InputError unless `draft` speaks in the token ids of `engine`."""
    ids = min(engine.model.spec.vocabulary, draft.model.spec.vocabulary)
    ours, theirs = (each.tokenizer.names(ids) for each in (engine, draft))
    if odd := sorted(id for id in ours.keys() | theirs.keys() if ours.get(id) != theirs.get(id)):
        raise InputError(
            f"{draft.model.spec.name} cannot guess for {engine.model.spec.name}: token {odd[0]} is not the "
            "same text in both; choose a draft with the same tokenizer."
        )
    if engine.device != draft.device:
        raise InputError(
            f"The draft is on {draft.device} and the model on {engine.device}: load both on one device."
        )


class DraftModel:
    """A smaller model reads the rows along with the model that it guesses for, and guesses what it would say.

    Both share the batch's columns, so column n of its own cache is column n of the batch's: it reads those
    that it has not read, and forgets rejected guesses when the batch has dropped them. A row whose guesses
    all came true gets one more the next time, else one fewer.

    Where a row draws, the guess is drawn by a copy of its generator: with the same number that will choose
    among the other model's probabilities, so that two models which nearly agree draw nearly always the same
    (Daliri et al. 2025). Given that number the guess is one id, its distribution q a point; and then the rule
    of speculative sampling needs neither the ratio p/q nor a residual distribution (see `Job.step`).
    """

    def __init__(self, model: CausalLM, vocabulary: int) -> None:
        """`vocabulary`: how many ids the other model has; either may have some more than the tokenizer."""
        self.model, self.vocabulary, self.cache = model, vocabulary, KVCache()
        self._wanted: list[int] = []  # guesses for each row, where it has room for them
        self._hoped: list[int] = []  # how long each row is if all of its last guesses came true

    @torch.inference_mode()
    def guess(self, batch: Batch) -> list[list[int]]:
        self.cache.crop(min(self.cache.columns, batch.stored))
        drafts: list[list[int]] = [[] for _ in batch.rows]
        left = self._learned(batch.rows)
        ids, valid, dense = batch.ids, batch.valid, batch.dense
        draws = [row.generator.clone_state() for row in batch.rows]
        while any(left):
            asked = [
                (row.params, [*row.ids, *draft], draw)
                for row, draft, draw in zip(batch.rows, drafts, draws, strict=True)
            ]
            chosen = next_ids(self._logits(ids, valid, dense=dense), asked)
            guessed = torch.tensor(left, device=valid.device) > 0
            dense = dense and all(left)
            ids = torch.cat((ids, chosen[:, None]), dim=1)  # (B, S + 1)
            valid = torch.cat((valid, guessed[:, None]), dim=1)  # (B, S + 1)
            for place, id in enumerate(chosen.tolist()):
                if left[place]:
                    drafts[place].append(id)
                    left[place] = 0 if batch.rows[place].ends_with(id) else left[place] - 1
        self._hoped = [len(row.ids) + len(draft) + 1 for row, draft in zip(batch.rows, drafts, strict=True)]
        return drafts

    def _learned(self, rows: Sequence[Row]) -> list[int]:
        """How many ids to guess for each row: by what became of its last guesses, as far as it has room, and
        as the draft has context; the last guess is never read, so it may lie just behind that."""
        if not self._hoped:
            self._wanted = [FIRST_GUESSED] * len(rows)
        for place, (row, hoped) in enumerate(zip(rows, self._hoped, strict=False)):
            change = 1 if len(row.ids) == hoped else -1
            self._wanted[place] = min(max(self._wanted[place] + change, 1), MOST_GUESSED)
        context = self.model.spec.context
        return [
            max(0, min(wanted, row.room, wanted if context is None else context - len(row.ids) + 1))
            for wanted, row in zip(self._wanted, rows, strict=True)
        ]

    def _logits(self, ids: Tensor, valid: Tensor, *, dense: bool) -> Tensor:
        """(B, V) behind ids (B, S), in the other model's V. Of rows that are too long for it, or ids that it
        does not know, it reads what it can: they only make worse guesses, or none."""
        columns = ids.shape[1] - self.cache.columns
        positions, mask = HONEST.placed(valid, columns, dense=dense)
        if self.model.spec.context is not None:
            positions = positions.clamp(max=self.model.spec.context - 1)
        known = ids[:, -columns:].clamp(max=self.model.spec.vocabulary - 1)
        logits = self.model.forward(known, positions, mask, self.cache, 1)  # (B, 1, V)
        self.cache.advance(columns)
        return F.pad(logits[:, 0], (0, self.vocabulary - logits.shape[-1]), value=-torch.inf)  # or cut
