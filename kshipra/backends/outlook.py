"""What a plan would need of memory, said before anything is fetched or loaded for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kshipra.memory import Estimate, check_weights_fit, estimate
from kshipra.modes import mode_named
from kshipra.recipes import recipe_named
from kshipra.types import ModelChoice, ModelSpec, Plan

if TYPE_CHECKING:
    import torch

    from kshipra.engine.runner import Engine


class Outlook:
    """It remembers the shape that was asked for last: a form asks again with every key that is pressed."""

    def __init__(self) -> None:
        self._last: tuple[tuple[str, str], ModelSpec] | None = None

    def of(self, plan: Plan, loaded: tuple[ModelChoice, Engine] | None) -> Estimate:
        """`loaded` is what is in memory now. Raises KshipraError for a model that cannot be had, or whose
        weights alone do not fit."""
        from kshipra.engine.devices import free_bytes, pick_device, pick_dtype, settled

        free = free_bytes(pick_device(plan.choice.device))
        modes = [mode_named(recipe_named(key).mode) for key in plan.recipes]
        count = len(plan.prompts)
        rows = max(mode.together(count, plan.rows if mode.batches else None) for mode in modes)
        if loaded is not None and loaded[0] == settled(plan.choice):
            return estimate(loaded[1].model.spec, plan, rows, free, is_loaded=True)
        spec = self._shape(plan.choice.model, pick_dtype(plan.choice.dtype))
        check_weights_fit(spec.name, spec.parameters, spec.dtype_bytes, free)
        return estimate(spec, plan, rows, free, is_loaded=False)

    def _shape(self, model: str, dtype: torch.dtype) -> ModelSpec:
        from kshipra.models.outlook import shape_of

        asked = model, str(dtype)
        last = self._last
        if last is None or last[0] != asked:
            self._last = last = asked, shape_of(model, dtype)
        return last[1]
