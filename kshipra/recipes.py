"""What a person picks from: each recipe is a mode on an engine, with a letter that stands for it everywhere.

An engine's "native" weights, "eager" execution and "auto" implementation are whatever the plan's own choice
says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kshipra.modes import (
    MODES,
    kv_cache,
    server,
    speculative,
    static_batch,
    transformers_generate,
    two_at_a_time,
)
from kshipra.modes.base import Mode
from kshipra.types import Recipe


def _of(mode: Mode) -> Recipe:
    return Recipe(mode.name, "", mode.label, mode.sentence, mode.name, implementation=mode.implementation)


_ENGINES = (  # the cached mode again, on engines that keep their weights or start their work in another way
    Recipe(
        "compiled",
        "",
        "Compiled",
        "As KV cache, but a decode step is one call of C++ that this machine's compiler built, instead of "
        "hundreds of operations that Python starts.",
        kv_cache.MODE.name,
        execution="compiled",
    ),
    Recipe(
        "int8",
        "",
        "INT8",
        "As KV cache, but each weight is a byte, with one scale a row: a step reads a quarter of float32's "
        "bytes, and logits change a little.",
        kv_cache.MODE.name,
        weights="int8",
    ),
    Recipe(
        "compiled_int8",
        "",
        "Compiled + INT8",
        "Both at once: a decode step is one call of C++, and the weights that it reads are a byte each.",
        kv_cache.MODE.name,
        weights="int8",
        execution="compiled",
    ),
    Recipe(
        "compiled_bf16",
        "",
        "Compiled + bf16",
        "The compiled step over weights of two bytes each: it reads half of float32's bytes, and logits "
        "change less than with INT8.",
        kv_cache.MODE.name,
        weights="bfloat16",
        execution="compiled",
    ),
)

# New ways come last, so that letters stay: one that needs a second model, one that is another machine's.
_LATER = (transformers_generate.MODE, speculative.DRAFT_MODEL, server.MODE)
_ALL_WAYS = (*map(_of, MODES), *_ENGINES, *map(_of, _LATER))
RECIPES: tuple[Recipe, ...] = tuple(
    replace(recipe, letter=letter)
    for letter, recipe in zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", _ALL_WAYS, strict=False)
)

RECIPE_KEYS: tuple[str, ...] = tuple(recipe.key for recipe in RECIPES)
USUAL_KEYS: tuple[str, ...] = RECIPE_KEYS[:3]  # what is compared where nothing else is picked


@dataclass(frozen=True)
class Bug:
    """A classic fault of the bug lab, run beside the healthy recipe that it spoils."""

    key: str
    label: str
    sentence: str  # what is done wrong
    why: str  # what gives it away, and who forgives it
    mode: Mode
    fault: str

    @property
    def healthy(self) -> Recipe:
        return Recipe(f"{self.key}-healthy", "H", "Healthy", self.mode.sentence, self.mode.name)

    @property
    def broken(self) -> Recipe:
        return Recipe(f"{self.key}-broken", "X", self.label, self.sentence, self.mode.name, fault=self.fault)


BUGS: tuple[Bug, ...] = (
    Bug(
        "pads-counted",
        "Positions count pads",
        "A left-padded prompt starts at the number of its pads instead of at 0.",
        "Learned positions are wrong for the whole text of every padded row. Rotary positions only measure "
        "the distance between two tokens, which a shift of the whole row leaves as it was: such a model "
        "forgives.",
        static_batch.MODE,
        "pads_counted",
    ),
    Bug(
        "positions-restart",
        "Positions restart at 0",
        "After the prompt every new token is placed at 0, as if nothing were in the cache.",
        "The first token is still right, because the prompt was read in one pass. No model forgives this "
        "one: distances are wrong as well.",
        kv_cache.MODE,
        "restarted",
    ),
    Bug(
        "order-one",
        "Cache order, one token",
        "New keys and values are stored before the old ones; each step adds one token.",
        "Nothing shows: one new token may look at everything, and attention does not care about order. A "
        "test with one-token steps passes.",
        kv_cache.MODE,
        "new_before_old",
    ),
    Bug(
        "order-two",
        "Cache order, two tokens",
        "New keys and values are stored before the old ones; the prompt is read two tokens at a time.",
        "With two new tokens the mask hides the last column from the first of them: now that is an old "
        "token, and the one it must not see is visible. Only a test with longer steps notices.",
        two_at_a_time.MODE,
        "new_before_old",
    ),
    Bug(
        "pads-visible",
        "Pads left in the mask",
        "The mask keeps the causal order but forgets which columns are padding.",
        "Every padded row reads its pads as if they were text, whatever kind of positions the model has.",
        static_batch.MODE,
        "pads_visible",
    ),
)
LAB_RECIPES: tuple[Recipe, ...] = tuple(recipe for bug in BUGS for recipe in (bug.healthy, bug.broken))
LAB_KEYS: tuple[str, ...] = tuple(recipe.key for recipe in LAB_RECIPES)
_ALL = {recipe.key: recipe for recipe in (*RECIPES, *LAB_RECIPES)}


def recipe_named(key: str) -> Recipe:
    """The recipe of that key, which `limits.check_plan` has let through."""
    return _ALL[key]
