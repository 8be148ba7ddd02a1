"""What bench measures side by side: a mode of an engine each. Refuses to know how an engine is loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kshipra.errors import InputError
from kshipra.modes import MODES, mode_named
from kshipra.modes.base import Mode
from kshipra.recipes import RECIPE_KEYS, recipe_named
from kshipra.types import ModelChoice, Recipe

if TYPE_CHECKING:
    import argparse

    from kshipra.engine.runner import Engine
MODE_NAMES = tuple(mode.name for mode in MODES)
# What recipes say themselves, and what is meant where neither they nor these are given.
COMBINED = {"mode": ",".join(MODE_NAMES), "weights": ["native"], "execution": ["eager"]}


@dataclass(frozen=True)
class Case:
    """What is measured: a mode of one engine; `asked_as` is the recipe's key where one was asked for."""

    mode: str
    choice: ModelChoice
    asked_as: str | None = None

    @property
    def name(self) -> str:
        """The recipe or mode, and of the engine only what differs from float32, native weights and eager."""
        dtype, weights, execution = self.choice.dtype, self.choice.weights, self.choice.execution
        stored = f"{weights} weights" if weights == "bfloat16" else weights  # the dtype's name too
        parts = (dtype,) if self.asked_as else (dtype, stored, execution)  # a recipe's key says the others
        usual = ("auto", "float32", "native", "eager")
        return " ".join((self.asked_as or self.mode, *(part for part in parts if part not in usual)))

    @property
    def recipe(self) -> Recipe:
        """What a comparison takes for it."""
        name = self.name
        return Recipe(name, "", name, "", self.mode, self.choice.weights, self.choice.execution)


def cases_of(settings: argparse.Namespace) -> list[Case]:
    """The recipes that were asked for, else every mode of every combination of weights and execution, each
    once, for each dtype; `settings` then say which. Raises InputError for a recipe or mode that there is not,
    and for both at once; options are for `load` to refuse."""
    _settle(settings)
    ways = list(_recipes(settings.recipes) if settings.recipes is not None else _combinations(settings))
    found: dict[str, Case] = {}
    for dtype in settings.dtype:
        for way in ways:
            implementation = settings.implementation if way.implementation == "auto" else way.implementation
            choice = ModelChoice(
                settings.model,
                settings.device,
                dtype,
                way.weights,
                way.execution,
                implementation,
                settings.draft,
            )
            case = Case(way.mode, choice, way.key or None)
            found.setdefault(case.name, case)
    check_draft(settings.draft, [mode_named(case.mode) for case in found.values()])
    return list(found.values())


def check_draft(draft: str | None, modes: Iterable[Mode]) -> None:
    """Raise InputError where one of `modes` needs a draft and none is named, or one is and none does."""
    drafting = [mode for mode in modes if mode.drafts]
    if drafting and draft is None:
        raise InputError(f"{drafting[0].label} needs a second, smaller model that guesses: add --draft NAME.")
    if draft is not None and not drafting:
        raise InputError("--draft guesses in --mode draft_model only: ask for that mode, or leave it out.")


def _settle(arguments: argparse.Namespace) -> None:
    """Fill in what is meant where no recipes are asked for; refuse what would contradict them."""
    given = [f"--{option}" for option in COMBINED if getattr(arguments, option) is not None]
    if arguments.recipes is not None and given:
        raise InputError(f"--recipes says what {' and '.join(given)} would say: give one or the other.")
    if arguments.recipes is None:
        for option, usual in COMBINED.items():
            if getattr(arguments, option) is None:
                setattr(arguments, option, usual)


def _recipes(keys: str) -> Iterator[Recipe]:
    for key in keys.split(","):
        if key not in RECIPE_KEYS:
            raise InputError(f"--recipes: {key!r:.40} is not one of {', '.join(RECIPE_KEYS)}.")
        yield recipe_named(key)


def _combinations(settings: argparse.Namespace) -> Iterator[Recipe]:
    """What the options ask for, as recipes without a name."""
    modes = [mode_named(name).name for name in settings.mode.split(",")]
    for weights in settings.weights:
        for execution in settings.execution:
            for mode in modes:
                yield Recipe("", "", "", "", mode, weights, execution)


def engines_of(cases: Sequence[Case], make: Callable[[ModelChoice], Engine]) -> dict[Case, Engine]:
    """The engine of each case; cases that differ in their mode only share one."""
    made = {choice: make(choice) for choice in dict.fromkeys(case.choice for case in cases)}
    return {case: made[case.choice] for case in cases}


def reference_of(engines: Mapping[Case, Engine], make: Callable[[ModelChoice], Engine]) -> Engine:
    """float32, native weights, eager: the engine of the case that has it, or one more."""
    plainest = dict(dtype="float32", weights="native", execution="eager", draft=None)
    for case, engine in engines.items():
        if case.name == case.mode:
            return engine
    return make(dataclasses.replace(next(iter(engines)).choice, **plainest))
