"""The engine: one model on one device, and the runs of modes over it. Refuses to know pages, queues and
threads.

An engine is used by one thread at a time; `kshipra.backends.local` sees to that for the page.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import torch
from torch import nn

from kshipra import machine, metrics
from kshipra.costs import kv_bytes_per_token, weight_bytes
from kshipra.engine.check import check_adapter
from kshipra.engine.compiled import compiled
from kshipra.engine.devices import free_bytes, pick_device, pick_dtype
from kshipra.engine.drafts import check_draft
from kshipra.engine.job import Chooser, Job, Observer, nobody
from kshipra.engine.layout import HONEST, Layout
from kshipra.engine.pages import use_huge_pages
from kshipra.engine.prefix import PrefixCache
from kshipra.engine.sampling import next_ids
from kshipra.engine.stepped import StepModel
from kshipra.errors import InputError
from kshipra.memory import Estimate, Work, check_weights_fit, work_of_requests
from kshipra.models.hf import TransformersModel
from kshipra.models.loading import load_model, wrap_model
from kshipra.models.outlook import shape_of
from kshipra.models.weights import check_weights, inner
from kshipra.modes import kv_cache, mode_named
from kshipra.modes.base import Mode
from kshipra.text import Tokenizer
from kshipra.types import (
    EXECUTIONS,
    UNBOUNDED,
    Batching,
    ModelChoice,
    Progress,
    Ready,
    Request,
    RunResult,
    SamplingParams,
    Started,
    StepEvent,
    silent,
)

Prompt = str | Sequence[int]
WARM_UP_TOKENS = 16


def never() -> bool:
    return False


def nothing(job: Job) -> None:
    """An `attend` that lets a run be."""


class Engine:
    """`model`: one of ours, or a transformers model in memory. `tokenizer`: transformers', or anything with
    `encode(text) -> ids` and `decode(ids) -> text`. `weights`: what its matrices are stored as in here; the
    model that is given stays as it is. `draft`: the engine of a smaller model with the same token ids, which
    guesses for this one in mode "draft_model"; InputError where the ids are others."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        implementation: str = "auto",
        weights: str = "native",
        draft: Engine | None = None,
    ) -> None:
        self.tokenizer = tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer(tokenizer)
        self.model = wrap_model(model, implementation, weights)
        self.model.eos_ids = frozenset(getattr(self.model, "eos_ids", ())) | self.tokenizer.eos_ids
        if isinstance(self.model, TransformersModel):
            check_adapter(self.model)
        if isinstance(inner(self.model), nn.Module):
            use_huge_pages(inner(self.model).parameters())
        self.device: torch.device = getattr(self.model, "device", torch.device("cpu"))
        self.dtype: torch.dtype = getattr(torch, self.model.spec.dtype)
        self._warm: set[str] = set()  # modes
        self.draft = draft
        if draft is not None:
            check_draft(self, draft)

    def stream(
        self,
        prompts: Sequence[Prompt],
        *,
        mode: str = "kv_cache",
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        chat: bool = False,
        stopped: Callable[[], bool] = never,
    ) -> Iterator[StepEvent]:
        """The events of one run, as they happen. `stopped` is asked before every step.

        Everything wrong with the arguments is raised here, before the first event is asked for.
        """
        return self.run(self.requests(prompts, params, chat=chat), mode=mode, stopped=stopped)

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        mode: str = "kv_cache",
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        chat: bool = False,
        stopped: Callable[[], bool] = never,
    ) -> RunResult:
        """Run to the end and fold the events; rows that `stopped` cut short are "cancelled"."""
        requests = self.requests(prompts, params, chat=chat)
        return metrics.fold(mode, requests, self.run(requests, mode=mode, stopped=stopped))

    def requests(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        chat: bool = False,
    ) -> tuple[Request, ...]:
        """Prompts as ids with settled seeds. Raises InputError for what the model cannot take, before any
        compute."""
        if isinstance(prompts, str) or not prompts:
            raise InputError("Prompts must be a list of at least one text or list of token ids.")
        params = params if params is not None else SamplingParams()
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        if len(each) != len(prompts):
            raise InputError(
                f"Give one set of parameters, or one a prompt: {len(each)} for {len(prompts)} prompts."
            )
        return tuple(
            self._request(row, prompt, own, chat)
            for row, (prompt, own) in enumerate(zip(prompts, each, strict=True))
        )

    def run(
        self,
        requests: Sequence[Request],
        *,
        mode: str,
        stopped: Callable[[], bool] = never,
        layout: Layout = HONEST,
        observe: Observer = nobody,
        choose: Chooser = next_ids,
        attend: Callable[[Job], None] = nothing,
        batching: Batching = UNBOUNDED,
        prefixes: PrefixCache | None = None,
    ) -> Iterator[StepEvent]:
        """The events of `requests` under `mode`. The clock of the run stands still between two events, and
        while `observe` is shown each new token's logits. Another `layout` plants a fault; another `choose`
        takes the next ids instead of the sampler, as when a text is read that is already written. `attend` is
        shown the job before every step, to add requests to it (which "continuous" lets join) or cancel some.
        """
        chosen = mode_named(mode)
        self.check(requests, chosen, batching)

        def events() -> Iterator[StepEvent]:
            self._warm_up(chosen)
            if isinstance(self.model, StepModel):
                work = work_of_requests(requests, chosen.together(len(requests), batching.rows))
                self.model.prepare(work.rows, min(work.columns, self.model.spec.context or work.columns))
            job = Job(
                self.model,
                self.tokenizer,
                requests,
                self.device,
                layout=layout,
                observe=observe,
                choose=choose,
                batching=batching,
                prefixes=prefixes,
                draft=self.draft.model if self.draft is not None else None,
            )
            if not job.requests:
                return
            with closing(chosen.run(job)) as steps:  # however it ends, nothing goes on behind it
                while not stopped():
                    attend(job)
                    if (event := next(steps, None)) is None:
                        return
                    job.pause()
                    yield event
                    job.resume()

        return events()

    def check(self, requests: Sequence[Request], mode: Mode, batching: Batching = UNBOUNDED) -> None:
        """Raise InputError for what `mode` cannot run on this model or in the memory that is free."""
        mode.check(requests)
        if mode.implementation != "auto" and not isinstance(self.model, TransformersModel):
            raise InputError(
                f"{mode.label} drives a model of that library: load it with --implementation transformers."
            )
        if mode.drafts and self.draft is None:
            raise InputError(f"{mode.label} needs an engine with a second model: load it with draft=NAME.")
        rows = mode.together(len(requests), batching.rows)
        work, free = work_of_requests(requests, rows), free_bytes(self.device)
        Estimate((self.model.spec,), work, free, is_loaded=True).check()

    def started(self, recipe: str, requests: tuple[Request, ...]) -> Started:
        """What is told as a recipe begins on this engine."""
        return Started(recipe, requests, self.model.spec, self.compile_s)

    @property
    def here(self) -> Engine:
        """What an engine that is elsewhere has one of in this process."""
        return self

    @property
    def compile_s(self) -> float | None:
        """What compiling its decode step took, 0.0 where that was on disk; None where it is not compiled."""
        return self.model.compile_s if isinstance(self.model, StepModel) else None

    def describe(self) -> Ready:
        """What is loaded, for people: shape, device, threads, and what weights and cache take."""
        spec = self.model.spec
        return Ready(
            spec, str(self.device), torch.get_num_threads(), weight_bytes(spec), kv_bytes_per_token(spec)
        )

    def _request(self, row: int, prompt: Prompt, params: SamplingParams, chat: bool) -> Request:
        if isinstance(prompt, str):
            text = prompt
            ids = self.tokenizer.encode_chat(text) if chat else self.tokenizer.encode(text)
        else:
            text, ids = "", list(prompt)
        vocabulary, context = self.model.spec.vocabulary, self.model.spec.context
        if not ids:
            raise InputError(f"Prompt {row + 1} is empty: write something or remove it.")
        if not all(isinstance(id, int) and 0 <= id < vocabulary for id in ids):
            raise InputError(f"Prompt {row + 1} has token ids that are not from 0 to {vocabulary - 1}.")
        if context is not None and len(ids) > context:
            raise InputError(
                f"Prompt {row + 1} has {len(ids):,} tokens and the model takes {context:,}: "
                f"shorten it by {len(ids) - context:,}."
            )
        if params.seed is None and params.temperature > 0:
            params = dataclasses.replace(params, seed=secrets.randbits(32))
        return Request(row, text, tuple(ids), params)

    def _warm_up(self, mode: Mode) -> None:
        """One prefill and one decode pass, so that no run pays for libraries that start up; once for all
        modes that share the engine's step, and of the draft where it takes part."""
        if mode.drafts and self.draft is not None:
            self.draft._warm_up(kv_cache.MODE)
        own = kv_cache.MODE if mode.implementation == "auto" else mode
        if own.name in self._warm:
            return
        limit = min(WARM_UP_TOKENS, self.model.spec.context or WARM_UP_TOKENS)
        ids = [id % self.model.spec.vocabulary for id in range(limit)]
        request = Request(0, "", tuple(ids), SamplingParams(2, ignore_eos=True))
        for _ in own.run(Job(self.model, self.tokenizer, [request], self.device)):
            pass
        self._warm.add(own.name)


def load(
    name: str,
    *,
    device: str = "auto",
    dtype: str = "auto",
    weights: str = "native",
    execution: str = "eager",
    implementation: str = "auto",
    draft: str | None = None,
    work: Work | None = None,
    progress: Progress = silent,
) -> Engine:
    """An engine for a catalogue name, a Hub id, a folder or a .gguf file, on all cores that this process may
    use. `draft` names a smaller model with the same token ids, loaded in the same way, that guesses for it.
    Where both do not fit in memory beside the `work` that they are loaded for, no weight of them is
    fetched.

    `progress(what, done_bytes, total_bytes)` is called while something is fetched. Raises KshipraError with
    one sentence for whatever cannot be loaded.
    """
    check_weights(weights)
    if execution not in EXECUTIONS:
        raise InputError(f"execution must be one of {', '.join(EXECUTIONS)}, not {execution!r:.40}.")
    picked, computed = pick_device(device), pick_dtype(dtype)
    if work is not None:
        specs = tuple(shape_of(each, computed) for each in (name, draft) if each is not None)
        Estimate(specs, work, free_bytes(picked), is_loaded=False).check()
    torch.set_num_threads(machine.threads())
    model, tokenizer = load_model(
        name,
        device=picked,
        dtype=computed,
        weights=weights,
        implementation=implementation,
        progress=progress,
        accept=lambda label, parameters: check_weights_fit(
            label, parameters, computed.itemsize, free_bytes(picked)
        ),
    )
    if execution == "compiled":
        model = compiled(model, progress=progress)
    guesses = None
    if draft is not None:
        guesses = load(
            draft,
            device=device,
            dtype=dtype,
            weights=weights,
            execution=execution,
            implementation=implementation,
            progress=progress,
        )
    return Engine(model, tokenizer, draft=guesses)


def load_choice(choice: ModelChoice, *, work: Work | None = None, progress: Progress = silent) -> Engine:
    """The engine of a ModelChoice, as `load` makes it."""
    options = dataclasses.asdict(choice)
    return load(options.pop("model"), **options, work=work, progress=progress)
