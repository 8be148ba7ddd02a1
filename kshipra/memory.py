"""What a run needs of memory, from a model's shape alone, against what is free. Knows nothing of torch.

An estimate errs on the side of too much: a run that is refused costs a sentence, one that should have been
costs every visitor the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kshipra.costs import kv_bytes_per_token
from kshipra.errors import InputError, ModelError
from kshipra.types import ModelSpec, Plan, Request

MARGIN = 1.25  # of what is counted, for what is not: the allocator's rounding, buffers of the libraries
GROWTH = 2  # a cache that grows holds the old tensors and the new ones for a moment
VECTORS = 10  # of the model's width that a pass keeps a column; the feed-forward's inner one is four of them
TOKEN_BYTES = 3  # of a prompt's text that make one token, where nobody has counted: English has four and more


def gib(amount: float) -> str:
    """Bytes for people: "1.3 GiB", or "512 MiB" below one."""
    return f"{amount / 2**30:.1f} GiB" if amount >= 2**30 else f"{amount / 2**20:.0f} MiB"


def check_weights_fit(label: str, parameters: int, dtype_bytes: int, free_bytes: int) -> None:
    """Raise ModelError unless `parameters` weights of `dtype_bytes` each fit into `free_bytes`, with the
    margin."""
    needed = parameters * dtype_bytes * MARGIN
    if needed > free_bytes:
        raise ModelError(
            f"{label} has {parameters / 1e6:,.0f} million weights and needs {gib(needed)} of memory at "
            f"{8 * dtype_bytes} bits each, and {gib(free_bytes)} are free: choose a smaller model."
        )


@dataclass(frozen=True)
class Estimate:
    """What a plan needs, before its model is there. `free_bytes` are those beside what is loaded now."""

    spec: ModelSpec
    parameters: int  # with those of a model that guesses for it
    is_loaded: bool  # its weights are in memory already
    run_bytes: int
    free_bytes: int

    @property
    def weight_bytes(self) -> int:
        """Yet to come, with the margin."""
        return 0 if self.is_loaded else int(MARGIN * self.parameters * self.spec.dtype_bytes)

    @property
    def needed_bytes(self) -> int:
        return self.weight_bytes + self.run_bytes

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.free_bytes


def estimate(
    specs: Sequence[ModelSpec], plan: Plan, rows: int, free_bytes: int, *, is_loaded: bool
) -> Estimate:
    """Of `plan`, `rows` of its prompts at once, on a model of the first of `specs`, and one of the second, if
    any, that guesses for it. They need not be there: so tokens are not counted, but follow from length."""
    prompts = [-(-len(prompt.encode()) // TOKEN_BYTES) for prompt in plan.prompts]
    columns = max(length + each.max_new_tokens for length, each in zip(prompts, plan.each, strict=True))
    needed = sum(_run_bytes(spec, rows, max(prompts), columns) for spec in specs)
    return Estimate(specs[0], sum(spec.parameters for spec in specs), is_loaded, needed, free_bytes)


def run_bytes(spec: ModelSpec, requests: Sequence[Request], rows: int) -> int:
    """Most bytes that `requests` take beside the weights with `rows` of them at once: keys and values of as
    many columns as the longest may come to, and the activations of the longest prompt."""
    columns = max(len(request.prompt_ids) + request.params.max_new_tokens for request in requests)
    return _run_bytes(spec, rows, max(len(request.prompt_ids) for request in requests), columns)


def _run_bytes(spec: ModelSpec, rows: int, prompt: int, columns: int) -> int:
    prompt = min(prompt, spec.context or prompt)
    keys_values = GROWTH * rows * min(columns, spec.context or columns) * kv_bytes_per_token(spec)
    activations = VECTORS * rows * prompt * spec.width * spec.dtype_bytes
    return int(MARGIN * (keys_values + activations))


def check_run_fits(spec: ModelSpec, requests: Sequence[Request], rows: int, free_bytes: int) -> None:
    """Raise InputError unless `requests`, `rows` of them at once, fit into `free_bytes` beside the
    weights."""
    needed = run_bytes(spec, requests, rows)
    if needed > free_bytes:
        raise InputError(
            f"{rows} prompt{'s' if rows > 1 else ''} at once with all new tokens may need {gib(needed)} of "
            f"memory, and {gib(free_bytes)} are free: use fewer prompts, shorter ones or fewer new tokens."
        )
