"""The experiments of the two studies, one command each: which there are. Knows nothing of torch or
of figures.

Each has two modules of its name: `measure/` takes raw samples, case by case, and `report/` makes figures,
tables and sentences of a results file alone.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from kshipra.errors import InputError


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    question: str  # which the report answers, with numbers

    def measuring(self) -> Any:
        """The module with `cases(rig)` and `measure(rig, case)`."""
        return importlib.import_module(f"kshipra.experiments.measure.{self.name.replace('-', '_')}")

    def reporting(self) -> Any:
        """The module with `report(results)`."""
        return importlib.import_module(f"kshipra.experiments.report.{self.name.replace('-', '_')}")


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        "positions",
        "Planted faults, and what catches them",
        "Which checks catch a wrong position, a wrong order of the cache, or a visible pad?",
    ),
    Experiment(
        "cpu-study",
        "Cache and batch on a processor",
        "How much faster do a KV cache and a batch of four make generation, and what does each cost in "
        "memory?",
    ),
    Experiment(
        "memory-puzzle",
        "Why does batching peak lower?",
        "Is it allocator churn and fragmentation that makes one prompt at a time peak above a batch?",
    ),
    Experiment(
        "kv-cache",
        "A step's time at every context",
        "How do step times with and without cache grow with the context, and how far is the clock from the "
        "arithmetic?",
    ),
    Experiment(
        "floor",
        "What sets a step's floor?",
        "Is the least time of a step kernels, the framework that starts them, or Python?",
    ),
    Experiment(
        "staircase",
        "Jumps of the uncached step",
        "Do the jumps of a whole step come from single matrix products that fill another tile?",
    ),
    Experiment(
        "scope",
        "Where the arithmetic comes true",
        "Does the cache's speed-up move toward the FLOP ratio as rows and model grow?",
    ),
    Experiment(
        "kv-memory",
        "What the cache costs",
        "How many bytes does the cache take by formula, as requested and as allocated, and when does it "
        "overtake the weights?",
    ),
)

NAMES: tuple[str, ...] = tuple(experiment.name for experiment in EXPERIMENTS)


def experiment_named(name: str) -> Experiment:
    """The experiment of that name; InputError names those there are."""
    for experiment in EXPERIMENTS:
        if experiment.name == name:
            return experiment
    raise InputError(f"Experiment {name!r:.40} is not one of {', '.join(NAMES)}.")
