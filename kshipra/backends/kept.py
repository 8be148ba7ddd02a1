"""Keys and values of earlier runs' texts, a PrefixCache for each engine. Decides what a run finds and what it
leaves behind; refuses to know how one goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kshipra.modes import mode_named
from kshipra.types import Kept, Plan, Recipe

if TYPE_CHECKING:
    from kshipra.engine.prefix import PrefixCache

MOST_BYTES = 256 * 2**20  # for each engine
SHARE = 1 / 16  # of the memory that is free, at most
Asked = tuple[str, str, str]  # weights, execution and implementation: a recipe's engine


def asked_of(recipe: Recipe) -> Asked:
    return recipe.weights, recipe.execution, recipe.implementation


class KeptTexts:
    """The caches are never changed, only exchanged: any thread may read them."""

    def __init__(self, free_bytes: int = 0) -> None:
        self._budget_bytes = min(MOST_BYTES, int(free_bytes * SHARE))
        self._caches: dict[Asked, PrefixCache] = {}

    def told(self) -> Kept:
        caches = list(self._caches.values())
        used_bytes = sum(cache.used_bytes for cache in caches)
        return Kept(sum(map(len, caches)), used_bytes, self._budget_bytes * max(1, len(caches)))

    def forget(self) -> None:
        self._caches = {}  # a run that goes on adds to the old ones, which go with it

    def for_plan(self, plan: Plan) -> PlanTexts:
        return PlanTexts(plan, self._caches, self._budget_bytes)


class PlanTexts:
    """What the ways of one plan find: what there was before it, so that none is warmed by another of them."""

    def __init__(self, plan: Plan, caches: dict[Asked, PrefixCache], budget_bytes: int) -> None:
        self._plan, self._caches, self._before = plan, caches, dict(caches)
        self._budget_bytes = budget_bytes

    def found_by(self, recipe: Recipe) -> PrefixCache | None:
        """A copy for one run of `recipe` to use and to add to; None where it does without. A planted fault
        must leave nothing behind."""
        from kshipra.engine.prefix import PrefixCache

        if not self._plan.reuse or not mode_named(recipe.mode).caches or recipe.fault:
            return None
        there = self._before.get(asked_of(recipe))
        return PrefixCache(self._budget_bytes) if there is None else there.copied()

    def leave(self, recipe: Recipe, texts: PrefixCache | None) -> None:
        """What a run of `recipe` was given and has added to stays for later plans. Of the ways on one engine,
        which read the same texts, the first one's."""
        asked = asked_of(recipe)
        if texts is not None and self._caches.get(asked) is self._before.get(asked):
            self._caches[asked] = texts
