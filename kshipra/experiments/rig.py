"""What a case measures with: the model, loaded when it is first asked for, and one stopwatch."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from kshipra import machine
from kshipra.engine.devices import pick_device
from kshipra.engine.runner import Engine
from kshipra.engine.variants import variant
from kshipra.experiments.shapes import load_or_random, random_gpt2
from kshipra.types import ModelChoice, ModelSpec, Progress, silent


@dataclass(frozen=True)
class Case:
    """One thing to measure. `settings` (plain values) say all that `measure` needs to know; with
    `environment` (may be empty) it runs in a process of its own, which has these variables too."""

    name: str
    settings: dict[str, Any]
    environment: dict[str, str] | None = None


@dataclass
class Rig:
    """`choice` names model, device and dtype; `quick` asks for a smaller grid and fewer repeats."""

    choice: ModelChoice
    quick: bool = False
    progress: Progress = silent
    variants: dict[tuple[str, str], Engine] = field(default_factory=dict)
    made: dict[str, Engine] = field(default_factory=dict)  # with random weights: one at most

    @property
    def repeats(self) -> int:
        """Samples of everything that is timed."""
        return 3 if self.quick else 5

    @cached_property
    def _loaded(self) -> tuple[Engine, str]:
        torch.set_num_threads(machine.threads())
        return load_or_random(self.choice, progress=self.progress)

    @property
    def engine(self) -> Engine:
        return self._loaded[0]

    @property
    def weights_from(self) -> str:
        return self._loaded[1]

    @property
    def spec(self) -> ModelSpec:
        return self.engine.model.spec

    @property
    def device(self) -> torch.device:
        return pick_device(self.choice.device)

    def variant(self, *, weights: str = "native", execution: str = "eager") -> Engine:
        """The loaded engine with its weights stored and its work started in another way, made once. Raises
        KshipraError with the reason where there can be none."""
        key = (weights, execution)
        if key not in self.variants:
            self.variants[key] = variant(self.engine, self.choice, *key, progress=self.progress)
        return self.variants[key]

    def shaped(self, shape: str) -> Engine:
        """GPT-2 in that shape with random weights. The one that was asked for before is let go first, so that
        two never have to fit."""
        if shape not in self.made:
            self.made.clear()
            self.made[shape] = random_gpt2(shape, device=self.choice.device, dtype=self.choice.dtype)
        return self.made[shape]

    def reference(self) -> Engine:
        """transformers' own implementation of the same weights, loaded anew for whoever holds it."""
        choice = dataclasses.replace(self.choice, implementation="transformers")
        return load_or_random(choice, progress=self.progress)[0]

    def wait(self) -> None:
        """Until the device has done all that it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()

    def timed_s(
        self,
        call: Callable[[], Any],
        *,
        repeats: int | None = None,
        before: Callable[[], Any] | None = None,
        limit_s: float = math.inf,
    ) -> list[float]:
        """Seconds of each of `repeats` calls between two waits for the device, after one that does not count.

        `before` puts things back in place before every call, outside its time. Fewer than `repeats` where
        they would take more than `limit_s`; a call that alone takes as long is its own warm-up."""
        taken: list[float] = []
        while len(taken) < 1 + (repeats or self.repeats) and sum(taken) < limit_s:
            if before is not None:
                before()
            self.wait()
            started_s = time.perf_counter()
            call()
            self.wait()
            taken.append(time.perf_counter() - started_s)
        return taken[1:] or taken
