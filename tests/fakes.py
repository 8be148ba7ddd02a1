"""A model whose passes take a set time and whose tokens are set beforehand; no weights, but the real engine
around."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from kshipra.types import ModelSpec


def spec(**changes) -> ModelSpec:
    shape = dict(
        name="fake",
        family="fake",
        layers=1,
        heads=1,
        kv_heads=1,
        head_size=4,
        width=4,
        vocabulary=300,
        context=4096,
        parameters=0,
        block_parameters=0,
    )
    return ModelSpec(**(shape | changes))


class FakeModel:
    """Says `script[n]` as the token at n places behind the prompt, in every row; counts its passes.

    `prompt_tokens` is the length of the prompts that it will be given (all alike); `during(pass_number)` is
    called inside every pass, to fail or to wait there.
    """

    def __init__(
        self,
        script: Sequence[int],
        *,
        prompt_tokens: int = 1,
        prefill_s: float = 0.0,
        step_s: float = 0.0,
        during: Callable[[int], None] = lambda number: None,
        **shape,
    ) -> None:
        self.spec = spec(**shape)
        self.eos_ids: frozenset[int] = frozenset()
        self.script, self.prompt_tokens = list(script), prompt_tokens
        self.prefill_s, self.step_s, self.during = prefill_s, step_s, during
        self.passes = 0

    def forward(self, ids, positions, mask, cache, keep):
        self.passes += 1
        self.during(self.passes)
        time.sleep(self.prefill_s if ids.shape[1] > 1 else self.step_s)
        if cache is not None:
            empty = torch.zeros(ids.shape[0], 1, ids.shape[1], self.spec.head_size)
            cache.append(0, empty, empty)
        logits = torch.zeros(ids.shape[0], keep, self.spec.vocabulary)
        for row, last in enumerate(positions[:, -1].tolist()):
            place = last + 1 - self.prompt_tokens
            logits[row, -1, self.script[place % len(self.script)]] = 1.0
        return logits
