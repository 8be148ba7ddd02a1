"""What a plan would need of memory, said before anything is fetched or loaded for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kshipra.memory import Estimate, Work, work_of_texts
from kshipra.modes import mode_named
from kshipra.recipes import recipe_named
from kshipra.types import ModelSpec, Plan

if TYPE_CHECKING:
    import torch

    from kshipra.engine.runner import Engine


def work_of(plan: Plan) -> Work:
    """Of the way that has most prompts at once."""
    modes = [mode_named(recipe_named(key).mode) for key in plan.recipes]
    count = len(plan.prompts)
    rows = max(mode.together(count, plan.rows if mode.batches else None) for mode in modes)
    return work_of_texts(plan.prompts, plan.each, rows)


class Outlook:
    """It remembers the shapes that were asked for last: a form asks again with every key that is pressed."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, torch.dtype], ModelSpec] = {}

    def of(self, plan: Plan, engine: Engine | None) -> Estimate:
        """`engine` is the plan's, where it is in memory already. Raises KshipraError for a model that cannot
        be had."""
        from kshipra.engine.devices import free_bytes, pick_device, pick_dtype

        models = [plan.choice.model, *([plan.choice.draft] if plan.choice.draft is not None else [])]
        if engine is not None:
            specs = [each.model.spec for each in (engine, engine.draft)[: len(models)] if each is not None]
        else:
            specs = self._shapes(models, pick_dtype(plan.choice.dtype))
        free = free_bytes(pick_device(plan.choice.device))
        return Estimate(tuple(specs), work_of(plan), free, is_loaded=engine is not None)

    def _shapes(self, models: list[str], dtype: torch.dtype) -> list[ModelSpec]:
        from kshipra.models.outlook import shape_of

        asked = [(model, dtype) for model in models]
        known = self._last
        self._last = found = {key: known.get(key) or shape_of(*key) for key in asked}
        return [found[key] for key in asked]
