"""The vocabulary of Kshipra: frozen values of plain Python that every module speaks. Knows nothing of torch.

Units are in the names (`_s` seconds, `_bytes`, `_tokens`); an unknown number is None, never NaN or infinity.
Every value here pickles and becomes JSON through `plain`, secrets left out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kshipra.errors import InputError

FinishReason = Literal["stop", "length", "context", "cancelled"]
Phase = Literal["prefill", "decode"]
Progress = Callable[[str, int | None, int | None], None]  # (what is going on, bytes done, bytes in all)
DTYPES = ("float32", "bfloat16", "float16")  # what may be computed in
EXECUTIONS = ("eager", "compiled")  # operation by operation from Python, or a decode step as one call
WEIGHTS = ("native", "bfloat16", "int8")  # what matrices may be stored as; native: as they are computed with


def silent(what: str, done: int | None, total: int | None) -> None:
    """A Progress that tells nobody."""


def plain(value: Any) -> Any:
    """`value` as dicts, lists, strings and finite numbers: what a strict JSON parser takes back."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        told = (field.name for field in dataclasses.fields(value) if not field.metadata.get("secret"))
        return {name: plain(getattr(value, name)) for name in told}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _require_number(name: str, value: Any, low: float, high: float, kind: type = float) -> None:
    """Refuse what is not a number of `kind` in [low, high]; NaN is in no range."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is int:
        is_number = isinstance(value, int) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:
        what = "a whole number" if kind is int else "a number"
        upper = f"from {low:g} to {high:g}" if high < math.inf else f"of at least {low:g}"
        raise InputError(f"{name} must be {what} {upper}, not {_shown(value)}.")


def _shown(value: Any) -> str:
    """`value` in a sentence; Python refuses to write out a number of thousands of digits."""
    try:
        return f"{value!r:.40}"
    except ValueError:
        return "a number of thousands of digits"


@dataclass(frozen=True)
class SamplingParams:
    """How a row's next token is chosen and when the row ends.

    temperature 0 is greedy; top_k 0 and top_p 1.0 are off; `seed=None` draws a fresh one, which the result
    shows. A row's draws depend on its own seed only, so rows with one seed and one prompt give one text.
    Raises InputError for a value out of its range.
    """

    max_new_tokens: int = 32
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _require_number("max_new_tokens", self.max_new_tokens, 0, 10**6, int)
        _require_number("temperature", self.temperature, 0, 100)
        _require_number("top_k", self.top_k, 0, math.inf, int)
        _require_number("top_p", self.top_p, 0, 1)
        _require_number("repetition_penalty", self.repetition_penalty, 0.01, 100)
        if self.seed is not None:
            _require_number("seed", self.seed, 0, 2**63 - 1, int)
        if not isinstance(self.ignore_eos, bool):
            raise InputError(f"ignore_eos must be true or false, not {_shown(self.ignore_eos)}.")
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        if not isinstance(stop, (list, tuple)) or not all(isinstance(text, str) and text for text in stop):
            raise InputError("stop must be texts of at least one character.")
        stop = tuple(stop)
        object.__setattr__(self, "stop", stop)


@dataclass(frozen=True)
class Request:
    """One row of a run: the ids that go in, and the parameters with their seed settled. It goes on from kept
    texts of its own `scope` only."""

    row: int
    prompt: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    scope: str = ""


@dataclass(frozen=True)
class Batching:
    """How requests share passes.

    At most `rows` at once (None: as many as the mode takes by itself), and where rows come and go only so
    many that rows x the longest of them stay within `cache_tokens` columns (None: no bound but the rows),
    with at most `chunk_tokens` of prompts read between two steps of the rows that run.
    """

    rows: int | None = None
    cache_tokens: int | None = None
    chunk_tokens: int = 128

    def __post_init__(self) -> None:
        _require_number("chunk_tokens", self.chunk_tokens, 1, math.inf, int)
        for name in ("rows", "cache_tokens"):
            if getattr(self, name) is not None:
                _require_number(name, getattr(self, name), 1, math.inf, int)

    def groups(self, requests: Iterable[Request], rows: int) -> Iterator[Sequence[Request]]:
        """`requests` in order, at most `self.rows` (None: `rows`) at a time."""
        requests, size = list(requests), self.rows or rows
        return (requests[start : start + size] for start in range(0, len(requests), size))


UNBOUNDED = Batching()


@dataclass(frozen=True)
class NewToken:
    """A token that the model produced. `text` is what may be shown now: "" while a character is unfinished.

    A server tells text and no ids: then `id` is None and this a piece of `count` tokens, or, where `count` is
    None, of some that the row's last piece counts, if anybody does.
    `log_probability` is the model's own, before temperature and cut-offs, and `best` its likeliest ids with
    theirs, best first. `guessed`: it was a guess that came true.
    """

    row: int
    id: int | None
    text: str
    finish_reason: FinishReason | None = None
    log_probability: float | None = None
    best: tuple[tuple[int, float], ...] = ()
    guessed: bool = False
    count: int | None = 1


@dataclass(frozen=True)
class StepEvent:
    """One forward pass with sampling, measured once; or what came from a server, of which it is not known
    what passes it took: `processed_tokens` and all that a server does not tell are None.

    `rows` are the requests that took part; `processed_tokens` the real tokens that went in and `pad_tokens`
    the columns that were computed for nothing. `elapsed_s` lasts until the new ids are on the host, and
    `at_s` is the run's own clock at that moment: it stands still while nobody asks for the next event, and
    while a pass that is over is looked at (memory, the best candidates).
    `kv_bytes` are the stored columns, `kv_held_bytes` the whole tensors. `peak_extra_bytes` is the highest so
    far above the baseline.
    """

    index: int
    phase: Phase
    rows: tuple[int, ...]
    new_tokens: tuple[NewToken, ...]
    processed_tokens: int | None
    pad_tokens: int | None
    elapsed_s: float
    at_s: float
    kv_bytes: int | None
    kv_held_bytes: int | None
    resident_bytes: int | None
    peak_extra_bytes: int | None
    memory_method: str
    flops: int | None
    reused_tokens: int = 0  # of the rows' prompts, what was in the cache before this, their first pass
    drafted_tokens: int = 0  # of the processed ones, those that were a guess
    row_drafted_tokens: tuple[int, ...] = ()  # the same for each of `rows`; empty where nothing guesses
    draft_s: float = 0.0  # of `elapsed_s`, what guessing took: a draft model's own passes, or a look-up

    @property
    def is_pass(self) -> bool:
        return self.processed_tokens is not None


@dataclass(frozen=True)
class Latency:
    """Percentiles of the decode passes' time, seconds; None where there was no such pass."""

    p50: float | None
    p90: float | None
    p99: float | None


@dataclass(frozen=True)
class RowResult:
    text: str
    token_ids: tuple[int, ...]
    prompt_tokens: int | None
    new_tokens: int | None
    finish_reason: FinishReason
    ttft_s: float | None
    seed: int | None
    drafted_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(frozen=True)
class RunResult:
    """What a run came to; `kshipra.metrics.fold` says how each number follows from the steps. None: nobody
    knows."""

    mode: str
    rows: tuple[RowResult, ...]
    wall_s: float
    ttft_s: float | None
    prefill_s: float | None
    decode_tok_per_s: float | None
    end_to_end_tok_per_s: float | None
    step_latency_s: Latency
    forward_passes: int | None
    new_tokens: int | None
    pad_tokens: int | None
    kv_bytes: int | None
    kv_held_bytes: int | None
    peak_extra_bytes: int | None
    memory_method: str
    steps: tuple[StepEvent, ...]
    largest_gap_s: float | None = None
    reused_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    draft_s: float = 0.0

    @property
    def tells_ids(self) -> bool:
        """Whether tokens can be compared; a server tells their text alone."""
        return all(step.is_pass for step in self.steps)

    def to_dict(self) -> dict[str, Any]:
        """Strict JSON: no NaN, no infinity; unknown is null."""
        return plain(self)


@dataclass(frozen=True)
class ModelSpec:
    """The shape of a model: what costs follow from. `context` is None where positions have no limit."""

    name: str
    family: str
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    width: int
    vocabulary: int
    context: int | None
    parameters: int  # shared weights counted once
    block_parameters: int  # those of the layers' matrices, which every token passes
    dtype: str = "float32"  # of what is computed and of keys and values
    dtype_bytes: int = 4
    weights: str = "native"  # one of WEIGHTS
    stored_bytes: int = 0  # all weights as stored, scales included, shared ones once; 0: all as dtype
    pass_weight_bytes: int = 0  # of those, what one pass reads: layers' matrices and head; 0: as dtype


@dataclass(frozen=True)
class Recipe:
    """One way of generating that a person can pick: a mode of an engine, with a letter, a name and a
    sentence."""

    key: str
    letter: str
    label: str
    sentence: str
    mode: str
    weights: str = "native"
    execution: str = "eager"
    implementation: str = "auto"
    fault: str | None = None  # what the bug lab plants


@dataclass(frozen=True)
class DeviceChoice:
    """A device that a person may pick, or, with a reason, may not."""

    name: str  # "cpu", "cuda", "mps"
    label: str  # what it is here: "cpu, 2 threads"
    unavailable: str | None = None  # one sentence


@dataclass(frozen=True)
class ModelChoice:
    """Which engine a run asks for."""

    model: str
    device: str = "auto"
    dtype: str = "auto"
    weights: str = "native"
    execution: str = "eager"
    implementation: str = "auto"
    draft: str | None = None  # the smaller model that guesses for it in mode draft_model


@dataclass(frozen=True)
class Server:
    """A server that speaks OpenAI's interface, as a visitor names it; "" leaves it to this machine's own
    settings. Only `model` ever becomes JSON."""

    address: str = dataclasses.field(default="", metadata={"secret": True})
    model: str = ""
    key: str = dataclasses.field(default="", repr=False, metadata={"secret": True})


@dataclass(frozen=True)
class Plan:
    """What a visitor asks for with Run: every recipe takes the same prompts and parameters, one after
    another.

    `limits`: of new tokens, one a prompt, None for that of `params`; () is `params` for all. Ways that share
    passes take at most `rows` prompts at once (None: as each does by itself), and with `reuse` those that
    cache go on from what earlier runs have read. `server` is for the way that asks one.
    """

    choice: ModelChoice
    prompts: tuple[str, ...]
    recipes: tuple[str, ...]
    params: SamplingParams
    chat: bool = False
    limits: tuple[int | None, ...] = ()
    rows: int | None = None
    reuse: bool = False
    server: Server = Server()

    @property
    def ragged(self) -> bool:
        """Whether prompts have limits of their own, or some of them wait until others have ended."""
        return bool(self.limits) or (self.rows is not None and len(self.prompts) > self.rows)

    @property
    def each(self) -> tuple[SamplingParams, ...]:
        """The parameters of every prompt."""
        return tuple(
            self.params if limit is None else dataclasses.replace(self.params, max_new_tokens=limit)
            for limit in self.limits or [None] * len(self.prompts)
        )


@dataclass(frozen=True)
class Kept:
    """How many earlier texts' keys and values a backend has, and the bytes that they take and may take."""

    texts: int
    used_bytes: int
    budget_bytes: int


# What a backend tells while it works on a plan: a stream of these, `Ended` always last.


@dataclass(frozen=True)
class Queued:
    """`place`: runs that go before this one, and with `others_load` one of them has another model loaded."""

    place: int
    others_load: bool = False
    loads: str | None = None  # the model that is loaded for this one then; None: it is there
    instead_of: str | None = None  # the one that makes way for it, where that is in use now


@dataclass(frozen=True)
class Loading:
    what: str  # "Fetching smollm2-135m-instruct", ...
    done: int | None = None
    total: int | None = None  # bytes, where known


@dataclass(frozen=True)
class Ready:
    spec: ModelSpec
    device: str
    threads: int
    weight_bytes: int
    kv_bytes_per_token: int


@dataclass(frozen=True)
class Started:
    recipe: str
    requests: tuple[Request, ...]
    spec: ModelSpec | None = None  # of the engine that runs it; None: as in Ready
    compile_s: float | None = None  # what compiling that engine took, 0.0 from disk; None: it is not compiled
    server_model: str | None = None  # what a server was asked for, where one does the work


@dataclass(frozen=True)
class Stepped:
    recipe: str
    event: StepEvent


@dataclass(frozen=True)
class Finished:
    recipe: str
    result: RunResult
    stopped: bool


@dataclass(frozen=True)
class Failed:
    sentence: str
    recipe: str | None = None
    result: RunResult | None = None  # what there was before the failure
    unavailable: bool = False  # it is that recipe's alone, which cannot run here; the others go on


Verdict = Literal["identical", "near-tie", "fault", "ended"]


@dataclass(frozen=True)
class Comparison:
    """Two recipes' new tokens, one by one: `identical`, or where they first part.

    `first_id` and `second_id` are the candidates there (None: that recipe's row had ended, verdict "ended").
    `margin` lies between the two best logits of the first recipe, `largest_difference` is that of any logit
    between the two recipes, both there. "near-tie": the difference is that of rounding and at least half the
    margin, so either token is a right one. "fault": anything else.
    """

    first: str
    second: str
    verdict: Verdict
    row: int | None = None
    position: int | None = None  # among the row's new tokens, from 0
    first_id: int | None = None
    second_id: int | None = None
    margin: float | None = None
    largest_difference: float | None = None


@dataclass(frozen=True)
class Check:
    """One of the engine's checks on one layout: the largest logit difference to one plain pass."""

    name: str
    label: str
    passed: bool
    largest_difference: float
    tolerance: float


@dataclass(frozen=True)
class Roofline:
    """What a machine was seen to do at best: memory read and floating-point operations a second."""

    device: str  # "cpu", "cuda", "mps"
    dtype: str  # of the arithmetic
    threads: int
    bytes_per_s: float
    flops_per_s: float
    taken_at: str  # ISO 8601, UTC


@dataclass(frozen=True)
class Reviewing:
    what: str  # the ways are over, the run is not: "Measuring this machine's memory and arithmetic", ...


@dataclass(frozen=True)
class Reviewed:
    """What was found out after the recipes had run: every pair compared, the checks of recipes with a planted
    fault, the machine's roofline, and the text of each id that the results name."""

    comparisons: tuple[Comparison, ...]
    checks: dict[str, tuple[Check, ...]]
    roofline: Roofline | None
    texts: dict[int, str]


@dataclass(frozen=True)
class Ended:
    stopped: bool = False


Message = Queued | Loading | Ready | Started | Stepped | Finished | Failed | Reviewing | Reviewed | Ended
