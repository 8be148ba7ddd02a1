"""The one list of what a plan may ask for, used by the page, its API and the shell. Knows nothing of torch.

Ranges of single sampling parameters that hold for everybody are in `types.SamplingParams`; here are the
narrower ones that keep a shared machine answering.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kshipra.errors import InputError
from kshipra.types import Plan

MAX_PROMPTS = 16
MAX_PROMPT_CHARS = 20_000
MAX_NEW_TOKENS = 2_048
MAX_MODEL_CHARS = 200
MAX_STOPS = 8
MAX_STOP_CHARS = 100


def whole_characters(text: str) -> str:
    """`text` with U+FFFD for halves of surrogate pairs, which no tokenizer takes."""
    return re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text)


def clean_text(text: str) -> str:
    """What a form sent, with whole characters only and without NUL."""
    return whole_characters(text).replace("\0", "")


def check_prompts(prompts: tuple[str, ...]) -> None:
    """Raise InputError unless there are 1 to MAX_PROMPTS texts of 1 to MAX_PROMPT_CHARS characters."""
    if not isinstance(prompts, (list, tuple)):
        raise InputError(f"Prompts must be a list of 1 to {MAX_PROMPTS} texts.")
    if not 1 <= len(prompts) <= MAX_PROMPTS:
        raise InputError(f"Prompts: give from 1 to {MAX_PROMPTS}, not {len(prompts)}.")
    for number, prompt in enumerate(prompts, start=1):
        if not isinstance(prompt, str):
            raise InputError(f"Prompt {number} must be a text, not {type(prompt).__name__}.")
        if not prompt:
            raise InputError(f"Prompt {number} is empty: write something or remove it.")
        if len(prompt) > MAX_PROMPT_CHARS:
            raise InputError(
                f"Prompt {number} has {len(prompt):,} characters: keep it to {MAX_PROMPT_CHARS:,}."
            )


def check_plan(
    plan: Plan,
    recipes: tuple[str, ...],
    unlisted: tuple[str, ...] = (),
    unavailable: Mapping[str, str] | None = None,
) -> None:
    """Raise InputError, naming the field and its range, before anything is tokenized or loaded.

    `unlisted` recipes are taken too, but not offered in the sentence. `unavailable` ones cannot run on this
    machine, each with the reason.
    """
    check_prompts(plan.prompts)
    if not plan.recipes:
        raise InputError("Ways to compare: pick at least one.")
    for key in plan.recipes:
        if key not in (*recipes, *unlisted):
            raise InputError(f"Ways to compare: {key!r:.40} is not one of {', '.join(recipes)}.")
        if unavailable and key in unavailable:
            raise InputError(f"Ways to compare: leave out {key}, because {unavailable[key]}.")
    model = plan.choice.model
    if not isinstance(model, str) or not model.strip() or len(model) > MAX_MODEL_CHARS:
        raise InputError(f"Model: give a name of 1 to {MAX_MODEL_CHARS} characters.")
    if plan.limits and len(plan.limits) != len(plan.prompts):
        raise InputError(f"Limits: give one a prompt or none, not {len(plan.limits)}.")
    for limit in (plan.params.max_new_tokens, *(limit for limit in plan.limits if limit is not None)):
        if not 0 <= limit <= MAX_NEW_TOKENS:
            raise InputError(f"Max new tokens must be from 0 to {MAX_NEW_TOKENS:,}, not {limit:,}.")
    if plan.rows is not None and not 1 <= plan.rows <= MAX_PROMPTS:
        raise InputError(f"Rows at once must be from 1 to {MAX_PROMPTS}, not {plan.rows:,}.")
    if len(plan.params.stop) > MAX_STOPS or any(len(text) > MAX_STOP_CHARS for text in plan.params.stop):
        raise InputError(f"Stop: give at most {MAX_STOPS} texts of up to {MAX_STOP_CHARS} characters.")
