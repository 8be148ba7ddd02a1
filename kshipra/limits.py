"""The one list of what a plan may ask for, used by the page, its API and the shell. Knows nothing of torch.

Ranges of single sampling parameters that hold for everybody are in `types.SamplingParams`; here are the
narrower ones that keep a shared machine answering.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kshipra.errors import InputError
from kshipra.models.catalogue import NAMES
from kshipra.types import Plan, SamplingParams

MODEL_CHARS = 200
STOPS = 8
STOP_CHARS = 100
SAID_CHARS = 4_000  # of one turn of a conversation
ANSWER_TOKENS = 256
FILE_BYTES = 8 * 2**20  # of a results file that a visitor opens


@dataclass(frozen=True)
class Limits:
    """What one visitor may ask for at once. `models` are those that may be named; None: whatever there is,
    with the folders and files of this machine."""

    prompts: int = 16
    prompt_chars: int = 20_000
    new_tokens: int = 2_048
    models: tuple[str, ...] | None = None

    @property
    def public(self) -> bool:
        """Whether strangers ask: then nothing is said about this machine."""
        return self.models is not None


OWN = Limits()


def public(model: str) -> Limits:
    """Those of a page for strangers, opened with `model`."""
    return Limits(8, 4_000, 256, tuple(dict.fromkeys((model, *NAMES))))


def whole_characters(text: str) -> str:
    """`text` with U+FFFD for halves of surrogate pairs, which no tokenizer takes."""
    return re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text)


def clean_text(text: str) -> str:
    """What a form sent, with whole characters only and without NUL."""
    return whole_characters(text).replace("\0", "")


def check_prompts(prompts: tuple[str, ...], limits: Limits = OWN) -> None:
    """Raise InputError unless there are 1 to `limits.prompts` texts of 1 to `limits.prompt_chars`
    characters."""
    if not isinstance(prompts, (list, tuple)):
        raise InputError(f"Prompts must be a list of 1 to {limits.prompts} texts.")
    if not 1 <= len(prompts) <= limits.prompts:
        raise InputError(f"Prompts: give from 1 to {limits.prompts}, not {len(prompts)}.")
    for number, prompt in enumerate(prompts, start=1):
        if not isinstance(prompt, str):
            raise InputError(f"Prompt {number} must be a text, not {type(prompt).__name__}.")
        if not prompt:
            raise InputError(f"Prompt {number} is empty: write something or remove it.")
        if len(prompt) > limits.prompt_chars:
            raise InputError(
                f"Prompt {number} has {len(prompt):,} characters: keep it to {limits.prompt_chars:,}."
            )


def check_model(model: str, limits: Limits = OWN, *, field: str = "Model") -> None:
    """Raise InputError for what cannot be a model's name, or may not be one here."""
    if not isinstance(model, str) or not model.strip() or len(model) > MODEL_CHARS:
        raise InputError(f"{field}: give a name of 1 to {MODEL_CHARS} characters.")
    if limits.models is not None and model.lower() not in map(str.lower, limits.models):
        raise InputError(f"{field}: this page offers {', '.join(limits.models)}, and not {model!r:.80}.")


def check_plan(
    plan: Plan,
    recipes: tuple[str, ...],
    unlisted: tuple[str, ...] = (),
    unavailable: Mapping[str, str] | None = None,
    limits: Limits = OWN,
) -> None:
    """Raise InputError, naming the field and its range, before anything is tokenized or loaded.

    `unlisted` recipes are taken too, but not offered in the sentence. `unavailable` ones cannot run on this
    machine, each with the reason.
    """
    check_prompts(plan.prompts, limits)
    if not plan.recipes:
        raise InputError("Ways to compare: pick at least one.")
    for key in plan.recipes:
        if key not in (*recipes, *unlisted):
            raise InputError(f"Ways to compare: {key!r:.40} is not one of {', '.join(recipes)}.")
        if unavailable and key in unavailable:
            raise InputError(f"Ways to compare: leave out {key}, because {unavailable[key]}.")
    check_model(plan.choice.model, limits)
    if plan.choice.draft is not None:
        check_model(plan.choice.draft, limits, field="Draft model")
    if plan.limits and len(plan.limits) != len(plan.prompts):
        raise InputError(f"Limits: give one a prompt or none, not {len(plan.limits)}.")
    for limit in (plan.params.max_new_tokens, *(limit for limit in plan.limits if limit is not None)):
        if not 0 <= limit <= limits.new_tokens:
            raise InputError(f"Max new tokens must be from 0 to {limits.new_tokens:,}, not {limit:,}.")
    if plan.reuse and limits.public:
        raise InputError("Cache reuse: leave it out on a public page, where it would tell what others asked.")
    if plan.rows is not None and not 1 <= plan.rows <= limits.prompts:
        raise InputError(f"Rows at once must be from 1 to {limits.prompts}, not {plan.rows:,}.")
    if len(plan.params.stop) > STOPS or any(len(text) > STOP_CHARS for text in plan.params.stop):
        raise InputError(f"Stop: give at most {STOPS} texts of up to {STOP_CHARS} characters.")


def check_turn(said: str, params: SamplingParams) -> None:
    """Raise InputError for a turn of a conversation that is out of its limits, before it takes a place."""
    if not isinstance(said, str) or not said.strip():
        raise InputError("Write something first.")
    if len(said) > SAID_CHARS:
        raise InputError(f"The message has {len(said):,} characters: keep it to {SAID_CHARS:,}.")
    if not 1 <= params.max_new_tokens <= ANSWER_TOKENS:
        raise InputError(f"Max new tokens must be from 1 to {ANSWER_TOKENS}, not {params.max_new_tokens:,}.")
