"""What bench measures side by side: a mode of an engine each, and what it runs under. Refuses to know how an
engine is loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from kshipra.errors import InputError
from kshipra.modes import MODES, mode_named
from kshipra.modes.base import Mode
from kshipra.recipes import RECIPE_KEYS, recipe_named
from kshipra.types import ModelChoice, Recipe, Request, StepEvent
from kshipra.workloads import Way, Workload, workload_named

if TYPE_CHECKING:
    import argparse

    from kshipra.backends.openai import ServerEngine
    from kshipra.engine.runner import Engine
MODE_NAMES = tuple(mode.name for mode in MODES)
# What recipes say themselves, and what is meant where neither they nor these are given.
COMBINED = {"mode": ",".join(MODE_NAMES), "weights": ["native"], "execution": ["eager"]}
# What a workload says itself, and what is meant without one.
SYNTHETIC = {"rows": 4, "prompt_tokens": 32, "new_tokens": 64}
REUSED_BYTES = 2**30  # that a case with reuse may keep: more than any workload fills


@dataclass(frozen=True)
class Case:
    """What is measured: a mode of one engine; `asked_as` is the recipe's key where one was asked for, `way`
    says under what it runs."""

    mode: str
    choice: ModelChoice
    asked_as: str | None = None
    way: Way | None = None

    @property
    def name(self) -> str:
        """The recipe or mode, and of the engine only what differs from float32, native weights and eager."""
        dtype, weights, execution = self.choice.dtype, self.choice.weights, self.choice.execution
        stored = f"{weights} weights" if weights == "bfloat16" else weights  # the dtype's name too
        parts = (dtype,) if self.asked_as else (dtype, stored, execution)  # a recipe's key says the others
        usual = ("auto", "float32", "native", "eager")
        reuse = ("reuse",) if self.way is not None and self.way.reuse else ()
        return " ".join((self.asked_as or self.mode, *reuse, *(part for part in parts if part not in usual)))

    @property
    def recipe(self) -> Recipe:
        """What a comparison takes for it."""
        name = self.name
        return Recipe(name, "", name, "", self.mode, self.choice.weights, self.choice.execution)


class CaseEngine:
    """`engine` as `case` runs it: in its groups or rows, and with a fresh PrefixCache where it reuses one."""

    def __init__(self, case: Case, engine: Engine | ServerEngine) -> None:
        self.case, self.engine, self.model = case, engine, engine.here.model

    def run(self, requests: Sequence[Request], *, mode: str, **options: Any) -> Iterator[StepEvent]:
        """As Engine.run; a way that shows nothing to an observer is run as the one that does instead."""
        if (way := self.case.way) is None:
            return self.engine.run(requests, mode=mode, **options)
        if "observe" in options:
            mode = way.seen_as or mode
        if way.reuse:
            from kshipra.engine.prefix import PrefixCache

            options["prefixes"] = PrefixCache(REUSED_BYTES)
        return self.engine.run(requests, mode=mode, batching=way.batching, **options)


def cases_of(settings: argparse.Namespace) -> list[Case]:
    """The ways of the workload or the recipes that were asked for, else every mode of every combination of
    weights and execution, each once, for each dtype; `settings` then say which. Raises InputError for a name
    that there is not, and for what contradicts another; options are for `load` to refuse."""
    _settle(settings)
    if settings.workload is not None:
        cases = list(_ways(workload_named(settings.workload), settings))
        check_draft(settings.draft, [mode_named(case.mode) for case in cases])
        return cases
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
    """Fill in what is meant where no recipes and no workload are asked for; refuse what contradicts them."""

    def refuse(by: str, options: Iterable[str]) -> None:
        given = [f"--{name.replace('_', '-')}" for name in options if getattr(arguments, name) is not None]
        if given:
            raise InputError(f"{by} says what {' and '.join(given)} would say: give one or the other.")

    if arguments.workload is not None:
        refuse("--workload", ("recipes", "mode", *SYNTHETIC))
    if arguments.recipes is not None:
        refuse("--recipes", COMBINED)
    usual = {} if arguments.recipes is not None else dict(COMBINED)
    if arguments.workload is not None:
        del usual["mode"]
    else:
        usual |= SYNTHETIC
    for option, value in usual.items():
        if getattr(arguments, option) is None:
            setattr(arguments, option, value)


def _ways(workload: Workload, settings: argparse.Namespace) -> Iterator[Case]:
    """Those of each engine together; a peer's once, as its library stores and starts its weights, and what
    needs a draft where there is one."""
    for dtype in settings.dtype:
        for place, (weights, execution) in enumerate(product(settings.weights, settings.execution)):
            own = ModelChoice(
                settings.model,
                settings.device,
                dtype,
                weights,
                execution,
                settings.implementation,
                settings.draft,
            )
            for way in workload.ways:
                if way.implementation != "auto" and place == 0:
                    peers = dict(weights="native", execution="eager", implementation=way.implementation)
                    yield Case(way.mode, dataclasses.replace(own, **peers), way=way)
                elif way.implementation == "auto" and (settings.draft or not mode_named(way.mode).drafts):
                    yield Case(way.mode, own, way=way)


def references_of(cases: Sequence[Case]) -> dict[Case, Case]:
    """What each case is held against: the first one, of a workload the first on its own engine."""
    firsts: dict[ModelChoice, Case] = {}
    for case in cases:
        firsts.setdefault(case.choice, case)
    peer = {case for case in cases if case.way is not None and case.way.seen_as is not None}
    return {case: cases[0] if case.way is None or case in peer else firsts[case.choice] for case in cases}


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


def engines_of(
    cases: Sequence[Case],
    make: Callable[[ModelChoice], Engine],
    ask: Callable[[Engine, str], Engine | ServerEngine],
) -> dict[Case, Engine | ServerEngine]:
    """The engine of each case; cases that differ in their mode only share one. `ask` makes that of a case
    that is elsewhere, from the engine of its model's name here, whose tokenizer writes the prompts."""
    made = {choice: make(choice) for choice in dict.fromkeys(case.choice for case in cases)}
    return {
        case: ask(made[case.choice], case.choice.model)
        if mode_named(case.mode).elsewhere
        else made[case.choice]
        for case in cases
    }


def reference_of(engines: Mapping[Case, Engine], make: Callable[[ModelChoice], Engine]) -> Engine:
    """float32, native weights, eager: the engine of the case that has it, or one more."""
    plainest = dict(dtype="float32", weights="native", execution="eager", draft=None)
    for case, engine in engines.items():
        if case.name == case.mode:
            return engine
    return make(dataclasses.replace(next(iter(engines)).choice, **plainest))
