"""What a person picks from: each recipe is a mode of an engine, with a letter that stands for it
everywhere."""

from __future__ import annotations

from kshipra.modes import MODES
from kshipra.types import Recipe

RECIPES: tuple[Recipe, ...] = tuple(
    Recipe(key=mode.name, letter=letter, label=mode.label, sentence=mode.sentence, mode=mode.name)
    for letter, mode in zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", MODES, strict=False)
)

RECIPE_KEYS: tuple[str, ...] = tuple(recipe.key for recipe in RECIPES)


def recipe_named(key: str) -> Recipe:
    """The recipe of that key, which `limits.check_plan` has let through."""
    return next(recipe for recipe in RECIPES if recipe.key == key)
