"""A page's form in its address: "Copy link" writes the query string, opening it fills the form in again.

Everything in a link comes from somebody else, so it is checked as a posted form is; nothing runs by itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Protocol

from kshipra.errors import InputError
from kshipra.limits import OWN, Limits, check_plan
from kshipra.recipes import RECIPE_KEYS
from kshipra.types import DTYPES, ModelChoice
from kshipra.ui.fields import script
from kshipra.ui.form import Form, in_order, plan_of, with_limits

MAX_CHARS = 8_000  # of a whole address, as browsers, proxies and chat programs take it
# No server: a link must not say where prompts go, and a key is nobody else's.
NAMES = tuple(field.name for field in fields(Form) if not field.name.startswith("server"))
SEVERAL = ("prompts", "recipes")  # these come once a value
LIMITS = "limits"  # of the prompts, once each, where one has its own
NUMBERS = ("max_new_tokens", "temperature", "top_k", "top_p", "repetition_penalty", "rows")


class Query(Protocol):
    """What starlette's QueryParams offer."""

    def getlist(self, key: str) -> list[str]: ...

    def get(self, key: str) -> str | None: ...


def copy_script(words: dict[str, str]) -> str:
    """The script of "Copy link": takes the fields NAMES in the order of Form."""
    settings = {"names": NAMES, "several": SEVERAL, "limits": LIMITS, "most": MAX_CHARS, "words": words}
    return f"(...values) => {{ const settings = {json.dumps(settings)};\n{script('copy', 'links')}\n}}"


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{name} must be a number, not {text!r:.40}.") from None
    return int(value) if value.is_integer() else value


def form_of(
    query: Query, first: Form, choice: ModelChoice, devices: Sequence[str], limits: Limits = OWN
) -> Form | None:
    """`first` with what `query` says; None where it says nothing. InputError for what the form would not
    take."""
    said: dict[str, Any] = {name: query.getlist(name) for name in SEVERAL if query.getlist(name)}
    for name in NAMES:
        if name not in SEVERAL and (text := query.get(name)) is not None:
            said[name] = _number(name, text) if name in NUMBERS else text
    if "reuse" in said:
        said["reuse"] = said["reuse"] == "true"
    if not said:
        return None
    if sum(len(text) for texts in (said.get(name, ()) for name in SEVERAL) for text in texts) > MAX_CHARS:
        raise InputError(f"a link holds at most {MAX_CHARS:,} characters.")
    if given := query.getlist(LIMITS):
        each = [_number(LIMITS, limit) if limit else None for limit in given]
        said["prompts"] = with_limits(said.get("prompts", []), each)
    form = replace(first, **said)
    for name, known in (
        ("device", ("auto", *devices)),
        ("dtype", ("auto", *DTYPES)),
        ("chat", ("raw", "chat")),
    ):
        if getattr(form, name) not in known:
            raise InputError(f"{name} must be one of {', '.join(known)}, not {getattr(form, name)!r:.40}.")
    plan = in_order(plan_of(form, choice, limits))
    check_plan(plan, RECIPE_KEYS, limits=limits)
    prompts, recipes = with_limits(plan.prompts, plan.limits), plan.recipes
    return replace(form, prompts=list(prompts), recipes=list(recipes))
