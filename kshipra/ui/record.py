"""A whole run as one JSON document: what is exported, opened again, replayed, and returned by the endpoint
`compare`. Knows nothing of gradio or torch.

    format, version, kshipra, taken_at, versions
    machine      processor, system, memory_bytes; threads, quota_cores and caches are not in older documents
    model        the Ready of the run: spec, device, threads, weight_bytes, kv_bytes_per_token
    settings     the Plan: choice, prompts, recipes, params, chat
    ways         a list: key, letter, label, sentence, ended ("done", "stopped", "failed"), result (RunResult
                 with every StepEvent), prompt_ids (a list a row), prediction (or null) with its sentence;
                 execution, and spec, the model as this way had it stored: both not in older documents; of a
                 server's way spec is null, and server_model what it was asked for
    comparisons  of every pair of ways that ended, each with its sentence; other_weights (not in older
                 documents): whether the two stored their weights differently
    checks       of each way of the bug lab: what the engine's own checks make of it
    bug          the planted fault's words, or null
    texts        the text of every id that a step names
    summary      headline, verdict and table of the page, as text
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from kshipra import __version__, machine
from kshipra.limits import clean_text
from kshipra.predict import predict
from kshipra.recipes import BUGS, recipe_named
from kshipra.types import (
    Comparison,
    Failed,
    Finished,
    Message,
    ModelSpec,
    Plan,
    Ready,
    Request,
    Reviewed,
    RunResult,
    Started,
    plain,
)
from kshipra.ui import predicted, show
from kshipra.ui.summary import Outcome, did_not_run, summarize

FORMAT, VERSION = "kshipra-run", 1


# by verdict, and whether the two ways stored their weights differently
MEANINGS = {
    ("near-tie", False): "a near-tie that rounding decides, so both are right",
    ("fault", False): "more than rounding explains: a real fault",
    (
        "near-tie",
        True,
    ): "within what storing weights differently may change, so each is right by its own weights",
    ("fault", True): "more than storing weights differently should change: weights that do not suit this "
    "storage, or a real fault",
}


class Recording:
    """The fold of one run's messages into its document."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._ready: Ready | None = None
        self._requests: dict[str, tuple[Request, ...]] = {}
        self._specs: dict[str, ModelSpec] = {}
        self._server_models: dict[str, str] = {}
        self._missing: list[str] = []
        self._results: dict[str, tuple[RunResult, str]] = {}
        self._review = Reviewed((), {}, None, {})

    def add(self, message: Message) -> None:
        match message:
            case Ready():
                self._ready = message
            case Started():
                self._requests[message.recipe] = message.requests
                if message.spec is not None:
                    self._specs[message.recipe] = message.spec
                if message.server_model is not None:
                    self._server_models[message.recipe] = message.server_model
            case Finished():
                self._results[message.recipe] = (message.result, "stopped" if message.stopped else "done")
            case Failed(recipe=str(key)):
                if message.unavailable:
                    self._missing.append(did_not_run(message))
                if message.result is not None:
                    self._results[key] = (message.result, "failed")
            case Reviewed():
                self._review = message
            case _:
                pass

    @property
    def steps(self) -> int:
        """Forward passes and new tokens: what a document's size goes by."""
        return sum(len(result.steps) + (result.new_tokens or 0) for result, _ in self._results.values())

    def document(self) -> dict[str, Any] | None:
        """The run so far; None while no way has ended."""
        if self._ready is None or not self._results:
            return None
        outcomes = [
            Outcome(recipe_named(key), result, None if ended == "done" else ended)
            for key, (result, ended) in self._results.items()
        ]
        return {
            "format": FORMAT,
            "version": VERSION,
            "kshipra": __version__,
            "taken_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine.describe(),
            "versions": machine.versions(),
            "model": plain(self._ready),
            "settings": plain(self.plan),
            "ways": [self._way(key) for key in self._results],
            "comparisons": [
                {
                    **plain(found),
                    "other_weights": self._other_weights(found),
                    "sentence": self._sentence(found),
                }
                for found in self._review.comparisons
            ],
            "checks": plain(self._review.checks),
            "bug": self._bug(),
            "texts": plain(self._review.texts),
            "summary": summarize(outcomes, self._ready.spec.dtype, self._missing),
        }

    def _way(self, key: str) -> dict[str, Any]:
        recipe, (result, ended) = recipe_named(key), self._results[key]
        return {
            "key": key,
            "letter": recipe.letter,
            "label": recipe.label,
            "sentence": recipe.sentence,
            "execution": recipe.execution,
            "spec": None if key in self._server_models else plain(self._spec(key)),
            "server_model": self._server_models.get(key),
            "ended": ended,
            "prompt_ids": [list(request.prompt_ids) for request in self._requests[key]],
            "result": result.to_dict(),
            "prediction": self._prediction(key, result),
        }

    def _prediction(self, key: str, result: RunResult) -> dict[str, Any] | None:
        if self._review.roofline is None or self._ready is None or not result.tells_ids:
            return None
        found = predict(self._spec(key), self._requests[key], result, self._review.roofline)
        return {**plain(found), "sentence": predicted.sentence(found, result)}

    def _spec(self, key: str) -> ModelSpec:
        """The model as the engine of that way had it; the loaded one where nothing else was said."""
        assert self._ready is not None
        return self._specs.get(key, self._ready.spec)

    def _other_weights(self, found: Comparison) -> bool:
        return self._spec(found.first).weights != self._spec(found.second).weights

    def _bug(self) -> dict[str, str] | None:
        for bug in BUGS:
            if bug.broken.key in self._results:
                return {"key": bug.key, "label": bug.label, "sentence": bug.sentence, "why": bug.why}
        return None

    def _sentence(self, found: Comparison) -> str:
        """A comparison for a person: what is equal, or where two ways part and what that means."""
        one, two = recipe_named(found.first), recipe_named(found.second)
        names = f"{one.letter} and {two.letter}"
        if found.verdict == "identical":
            return f"{names}: every token is identical."
        assert found.row is not None
        assert found.position is not None
        where = f"{names} part in prompt {found.row + 1} at new token {found.position + 1}"
        if found.verdict == "ended":
            ended = one.letter if found.first_id is None else two.letter
            return f"{where}: {ended} had ended there."
        texts = self._review.texts
        ours, theirs = (
            json.dumps(texts.get(id, ""), ensure_ascii=False) for id in (found.first_id, found.second_id)
        )
        figures = (
            f"{ours} against {theirs}; the two best logits of {one.letter} lie {show.digits(found.margin)} "
            f"apart, and the ways' logits differ by up to {show.digits(found.largest_difference)}"
        )
        return f"{where}: {figures}. That is {MEANINGS[found.verdict, self._other_weights(found)]}."


def to_json(document: dict[str, Any]) -> str:
    """Strict JSON on one line, whole characters only."""
    return clean_text(json.dumps(document, allow_nan=False, ensure_ascii=False, separators=(",", ":")))
