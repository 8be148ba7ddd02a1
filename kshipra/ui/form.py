"""From what the page posts to a Plan. Anything can be posted: it is checked here or in `kshipra.limits`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kshipra.errors import InputError
from kshipra.limits import OWN, Limits, clean_text
from kshipra.modes import mode_named
from kshipra.recipes import LAB_KEYS, RECIPE_KEYS, RECIPES
from kshipra.types import ModelChoice, Plan, SamplingParams, Server

MOST_WHOLE = 2**53 - 1  # JSON's numbers are a browser's: beyond this they lose digits, and name another seed
SEEDS = f"from 0 to {MOST_WHOLE:,}, or leave it blank"


@dataclass(frozen=True)
class Form:
    """The fields in the order in which the page posts them. A prompt is a text, or a text with its own limit
    of new tokens."""

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
    rows: Any = None
    reuse: Any = False
    draft: Any = ""
    server: Any = ""
    server_model: Any = ""
    server_key: Any = field(default="", repr=False)


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        raise InputError(f"{name} must be a list of texts.")
    return tuple(clean_text(item) for item in value)


def _prompts(value: Any, most: int) -> tuple[tuple[str, ...], tuple[int | None, ...]]:
    """Texts, and their limits of new tokens: none where no text has one of its own."""
    pairs = value if isinstance(value, (list, tuple)) else [None]
    pairs = [item if isinstance(item, (list, tuple)) else (item, None) for item in pairs]
    if not all(len(pair) == 2 for pair in pairs):
        raise InputError("Prompts must be a list of texts.")
    limits = tuple(
        None if limit is None else _whole(f"Limit of prompt {number}", limit, f"from 0 to {most:,}")
        for number, (_, limit) in enumerate(pairs, start=1)
    )
    has_own = any(limit is not None for limit in limits)
    return _texts("Prompts", [text for text, _ in pairs]), limits if has_own else ()


def with_limits(prompts: Sequence[str], limits: Sequence[int | None]) -> Sequence[Any]:
    """`prompts` as a form has them; no `limits` are those of the form for all."""
    if limits and len(limits) != len(prompts):
        raise InputError(f"Limits: give one a prompt or none, not {len(limits)}.")
    return [list(pair) for pair in zip(prompts, limits, strict=True)] if limits else prompts


def _whole(name: str, value: Any, range_text: str) -> int:
    whole = isinstance(value, (int, float)) and math.isfinite(value) and value == int(value)
    if not whole or isinstance(value, bool) or abs(value) > MOST_WHOLE:
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
    return None if value is None else _whole("Seed", value, SEEDS)


def in_order(plan: Plan) -> Plan:
    """`plan` with its recipes in the page's order, each once, the bug lab's last; unknown ones stay for the
    backend to refuse."""
    order = (*RECIPE_KEYS, *LAB_KEYS)
    known = [key for key in order if key in plan.recipes]
    return replace(plan, recipes=(*known, *(key for key in plan.recipes if key not in order)))


def _draft(name: Any, recipes: Sequence[str]) -> str | None:
    """The model that guesses, where one of `recipes` wants one: else it would be loaded for nothing."""
    drafting = (recipe for recipe in RECIPES if recipe.key in recipes and mode_named(recipe.mode).drafts)
    if (recipe := next(drafting, None)) is None:
        return None
    if not (draft := clean_text(str(name or "")).strip()):
        raise InputError(
            f"Draft model: name a smaller model with the same tokenizer, or leave out way {recipe.letter}."
        )
    return draft


def _server(form: Form, recipes: Sequence[str]) -> Server:
    """The server that is named, where one of `recipes` asks one: else nothing of it goes any further."""
    if not any(mode_named(recipe.mode).elsewhere for recipe in RECIPES if recipe.key in recipes):
        return Server()
    named = (form.server, form.server_model, form.server_key)
    return Server(*(clean_text(str(value or "")).strip() for value in named))


def plan_of(form: Form, default: ModelChoice, limits: Limits = OWN) -> Plan:
    """The Plan that `form` asks for; InputError names the field that cannot be used."""
    params = SamplingParams(
        max_new_tokens=_whole("Max new tokens", form.max_new_tokens, f"from 0 to {limits.new_tokens:,}"),
        temperature=_number("Temperature", form.temperature),
        top_k=_whole("Top-k", form.top_k, f"from 0 to {MOST_WHOLE:,}"),
        top_p=_number("Top-p", form.top_p),
        repetition_penalty=_number("Repetition penalty", form.repetition_penalty),
        seed=_seed(form.seed),
    )
    recipes = _texts("Ways to compare", form.recipes)
    choice = replace(
        default,
        model=clean_text(str(form.model or "")).strip(),
        device=str(form.device),
        dtype=str(form.dtype),
        draft=_draft(form.draft, recipes),
    )
    prompts, own_limits = _prompts(form.prompts, limits.new_tokens)
    rows = None if form.rows is None else _whole("Rows at once", form.rows, f"from 1 to {limits.prompts}")
    return Plan(
        choice,
        prompts,
        recipes,
        params,
        chat=form.chat == "chat",
        limits=own_limits,
        rows=rows,
        reuse=form.reuse is True,
        server=_server(form, recipes),
    )
