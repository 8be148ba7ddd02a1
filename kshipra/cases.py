"""What bench measures side by side: a mode of an engine each. Refuses to know how an engine is loaded."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kshipra.modes import mode_named
from kshipra.types import ModelChoice, Recipe

if TYPE_CHECKING:
    import argparse

    from kshipra.engine.runner import Engine

ENGINE_OPTIONS = ("dtype", "weights", "execution")  # of which bench takes several


@dataclass(frozen=True)
class Case:
    """What is measured: a mode of one engine."""

    mode: str
    choice: ModelChoice

    @property
    def name(self) -> str:
        """The mode, and of the engine only what differs from float32, native weights and eager."""
        dtype, weights, execution = (getattr(self.choice, option) for option in ENGINE_OPTIONS)
        stored = f"{weights} weights" if weights == "bfloat16" else weights  # the dtype's name too
        usual = ("auto", "float32", "native", "eager")
        return " ".join((self.mode, *(part for part in (dtype, stored, execution) if part not in usual)))

    @property
    def recipe(self) -> Recipe:
        """What a comparison takes for it."""
        name = self.name
        return Recipe(name, "", name, "", self.mode, self.choice.weights, self.choice.execution)


def cases_of(settings: argparse.Namespace) -> list[Case]:
    """Every mode of every combination of the engine's options, in their order, each once. Raises InputError
    for a mode that there is not; options are for `load` to refuse."""
    modes = [mode_named(name).name for name in settings.mode.split(",")]
    found: dict[str, Case] = {}
    for values in itertools.product(*(getattr(settings, option) for option in ENGINE_OPTIONS)):
        engine = dict(zip(ENGINE_OPTIONS, values, strict=True))
        choice = ModelChoice(
            settings.model, settings.device, implementation=settings.implementation, **engine
        )
        for mode in modes:
            case = Case(mode, choice)
            found.setdefault(case.name, case)
    return list(found.values())


def engines_of(cases: Sequence[Case], make: Callable[[ModelChoice], Engine]) -> dict[Case, Engine]:
    """The engine of each case; cases that differ in their mode only share one."""
    made = {choice: make(choice) for choice in dict.fromkeys(case.choice for case in cases)}
    return {case: made[case.choice] for case in cases}


def reference_of(engines: Mapping[Case, Engine], make: Callable[[ModelChoice], Engine]) -> Engine:
    """float32, native weights, eager: the engine of the case that has it, or one more."""
    plainest = dict(dtype="float32", weights="native", execution="eager")
    for case, engine in engines.items():
        if case.name == case.mode:
            return engine
    return make(dataclasses.replace(next(iter(engines)).choice, **plainest))
