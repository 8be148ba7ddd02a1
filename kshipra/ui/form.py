"""From what the page posts to a Plan. Anything can be posted: it is checked here or in `kshipra.limits`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from kshipra.errors import InputError
from kshipra.limits import OWN, Limits, clean_text
from kshipra.recipes import LAB_KEYS, RECIPE_KEYS
from kshipra.types import ModelChoice, Plan, SamplingParams


@dataclass(frozen=True)
class Form:
    """The fields in the order in which the page posts them."""

    prompts: Any
    recipes: Any
    model: Any
    device: Any
    dtype: Any
    chat: Any
    max_new_tokens: Any
    temperature: Any
    top_k: Any
    top_p: Any
    repetition_penalty: Any
    seed: Any


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        raise InputError(f"{name} must be a list of texts.")
    return tuple(clean_text(item) for item in value)


def _whole(name: str, value: Any, range_text: str) -> int:
    whole = isinstance(value, (int, float)) and math.isfinite(value) and value == int(value)
    if not whole or isinstance(value, bool):
        raise InputError(f"{name}: give a whole number {range_text}.")
    return int(value)


def _number(name: str, value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        raise InputError(f"{name}: give a number.")
    return float(value)


def _seed(value: Any) -> int | None:
    """A number or its text; blank is None, which draws a fresh one."""
    if isinstance(value, str):
        text = value.strip()
        value = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else text or None
    return None if value is None else _whole("Seed", value, "of at least 0, or leave it blank")


def in_order(plan: Plan) -> Plan:
    """`plan` with its recipes in the page's order, each once, the bug lab's last; unknown ones stay for the
    backend to refuse."""
    order = (*RECIPE_KEYS, *LAB_KEYS)
    known = [key for key in order if key in plan.recipes]
    return replace(plan, recipes=(*known, *(key for key in plan.recipes if key not in order)))


def plan_of(form: Form, default: ModelChoice, limits: Limits = OWN) -> Plan:
    """The Plan that `form` asks for; InputError names the field that cannot be used."""
    params = SamplingParams(
        max_new_tokens=_whole("Max new tokens", form.max_new_tokens, f"from 0 to {limits.new_tokens:,}"),
        temperature=_number("Temperature", form.temperature),
        top_k=_whole("Top-k", form.top_k, "of at least 0"),
        top_p=_number("Top-p", form.top_p),
        repetition_penalty=_number("Repetition penalty", form.repetition_penalty),
        seed=_seed(form.seed),
    )
    choice = replace(
        default,
        model=clean_text(str(form.model or "")).strip(),
        device=str(form.device),
        dtype=str(form.dtype),
    )
    prompts, recipes = _texts("Prompts", form.prompts), _texts("Ways to compare", form.recipes)
    return Plan(choice, prompts, recipes, params, chat=form.chat == "chat")
