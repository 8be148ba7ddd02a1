"""transformers' own `generate` on one prompt, a token at a time: it runs in a thread that hands each new
token over and waits until the next is wanted. Refuses to know rows and events.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

import torch
from torch import Tensor
from transformers import LogitsProcessor, RepetitionPenaltyLogitsProcessor, StoppingCriteria

from kshipra.models.hf import GenerateCache, TransformersModel
from kshipra.types import SamplingParams

# logits (1, 1, V), the id of the only row, seconds from being let go to that id
Token = tuple[Tensor, list[list[int]], float]


class Generation:
    """Use it in a `with`: leaving that ends the thread, after the token under way at the latest.

    `cache` is the one that `generate` fills. The thread works only while `token` waits for it.
    """

    def __init__(self, model: TransformersModel, ids: Tensor, params: SamplingParams) -> None:
        self.cache = GenerateCache(model)
        self._model, self._ids, self._params = model, ids, params
        self._wanted: SimpleQueue[bool] = SimpleQueue()  # one more token, or none any more
        self._told: SimpleQueue[Token | BaseException] = SimpleQueue()
        self._ended = False
        self._started_s = 0.0
        # daemon: an iterator that nobody closed must not keep the process
        self._thread = Thread(target=self._work, name="kshipra-generate", daemon=True)

    def __enter__(self) -> Generation:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._wanted.put(False)
        self._thread.join()

    def token(self) -> Token:
        """The next token. Raises what `generate` raised."""
        self._wanted.put(True)
        told = self._told.get()
        if isinstance(told, BaseException):
            raise told
        return told

    @torch.inference_mode()  # holds for one thread, as does the number that follows
    def _work(self) -> None:
        torch.set_num_threads(torch.get_num_threads())
        if not self._goes_on():
            return
        look, penalty = Look(), self._params.repetition_penalty
        try:
            self._model.generate(
                self._ids,
                cache=self.cache,
                max_new_tokens=self._params.max_new_tokens,
                processors=[look, *([RepetitionPenaltyLogitsProcessor(penalty)] if penalty != 1 else [])],
                stop=HandOver(lambda id: self._hand_over(look.logits, id)),
            )
            if not self._ended:
                raise RuntimeError("transformers' generate ended a row that had not ended")
        except BaseException as error:  # else whoever waits would wait for ever
            self._told.put(error)

    def _goes_on(self) -> bool:
        """Wait until a token is wanted, whose time begins then; False once none is any more."""
        self._ended = self._ended or not self._wanted.get()
        self._started_s = time.perf_counter()
        return not self._ended

    def _hand_over(self, logits: Tensor, id: Tensor) -> bool:
        """Tell of a token, and whether `generate` shall stop with it."""
        chosen = [id.tolist()]  # waits for the device
        elapsed_s = time.perf_counter() - self._started_s
        computed = getattr(torch, self._model.spec.dtype)  # transformers chooses among float32 copies
        self._told.put((logits.to(computed)[:, None], chosen, elapsed_s))
        return not self._goes_on()


class Look(LogitsProcessor):
    """Keeps the logits (B, V) that it is shown."""

    logits: Tensor

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.logits = scores
        return scores


class HandOver(StoppingCriteria):
    """Is asked after each token, ids (B, S), which rows are done: `done` says it of the last column (B)."""

    def __init__(self, done: Callable[[Tensor], bool]) -> None:
        self._done = done

    def __call__(self, input_ids: Tensor, scores: Tensor | None, **_: object) -> Tensor:
        ids = input_ids[:, -1]
        return torch.full_like(ids, self._done(ids), dtype=torch.bool)  # (B)
