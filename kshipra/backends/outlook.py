"""What a plan would need of memory, said before anything is fetched or loaded for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kshipra.memory import Estimate, check_weights_fit, estimate
from kshipra.modes import mode_named
from kshipra.recipes import recipe_named
from kshipra.types import ModelSpec, Plan

if TYPE_CHECKING:
    import torch

    from kshipra.engine.runner import Engine


class Outlook:
    """It remembers the shapes that were asked for last: a form asks again with every key that is pressed."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, torch.dtype], ModelSpec] = {}

    def of(self, plan: Plan, engine: Engine | None) -> Estimate:
        """`engine` is the plan's, where it is in memory already. Raises KshipraError for a model that cannot
        be had, or whose weights alone do not fit."""
        from kshipra.engine.devices import free_bytes, pick_device, pick_dtype

        free = free_bytes(pick_device(plan.choice.device))
        modes = [mode_named(recipe_named(key).mode) for key in plan.recipes]
        count = len(plan.prompts)
        here = [
            mode.together(count, plan.rows if mode.batches else None) for mode in modes if not mode.elsewhere
        ]
        rows = max(here, default=0)
        if engine is not None:
            needed = [engine, engine.draft] if plan.choice.draft is not None and engine.draft else [engine]
            return estimate([each.model.spec for each in needed], plan, rows, free, is_loaded=True)
        specs = self._shapes([plan.choice.model, plan.choice.draft], pick_dtype(plan.choice.dtype))
        for spec in specs:
            check_weights_fit(spec.name, spec.parameters, spec.dtype_bytes, free)
        return estimate(specs, plan, rows, free, is_loaded=False)

    def _shapes(self, models: list[str | None], dtype: torch.dtype) -> list[ModelSpec]:
        from kshipra.models.outlook import shape_of

        asked = [(model, dtype) for model in models if model is not None]
        known = self._last
        self._last = found = {key: known.get(key) or shape_of(*key) for key in asked}
        return [found[key] for key in asked]
