"""What a run needs of memory, from a model's shape alone, against what is free. Knows nothing of torch.

An estimate errs on the side of too much: a run that is refused costs a sentence, one that should have been
costs every visitor the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kshipra.costs import kv_bytes_per_token
from kshipra.errors import DoesNotFit, ModelError
from kshipra.types import ModelSpec, Request, SamplingParams

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
class Work:
    """What a run has in memory beside the weights: at most `rows` prompts at once, the longest of them in
    tokens, and the most columns of keys and values that one of them may come to."""

    rows: int
    prompt_tokens: int
    columns: int

    def bytes_on(self, spec: ModelSpec) -> int:
        """Keys and values of all columns, and the activations of the longest prompt."""
        prompt = min(self.prompt_tokens, spec.context or self.prompt_tokens)
        columns = min(self.columns, spec.context or self.columns)
        keys_values = GROWTH * self.rows * columns * kv_bytes_per_token(spec)
        activations = VECTORS * self.rows * prompt * spec.width * spec.dtype_bytes
        return int(MARGIN * (keys_values + activations))


def work_of_requests(requests: Sequence[Request], rows: int) -> Work:
    """Of `requests`, `rows` of them at once."""
    columns = max(len(request.prompt_ids) + request.params.max_new_tokens for request in requests)
    return Work(rows, max(len(request.prompt_ids) for request in requests), columns)


def work_of_texts(prompts: Sequence[str], each: Sequence[SamplingParams], rows: int) -> Work:
    """The same before there is a tokenizer: tokens are not counted, but follow from the texts' lengths."""
    lengths = [-(-len(prompt.encode(errors="surrogatepass")) // TOKEN_BYTES) for prompt in prompts]
    columns = max(length + params.max_new_tokens for length, params in zip(lengths, each, strict=True))
    return Work(rows, max(lengths), columns)


@dataclass(frozen=True)
class Estimate:
    """What `work` needs on a model of the first of `specs`, and on one of the second, if any, that guesses
    for it. `free_bytes` are those beside what is loaded now. The page shows it; who loads or runs asks
    the same `check`."""

    specs: tuple[ModelSpec, ...]
    work: Work
    free_bytes: int
    is_loaded: bool  # the weights are in memory already

    @property
    def spec(self) -> ModelSpec:
        return self.specs[0]

    @property
    def parameters(self) -> int:
        return sum(spec.parameters for spec in self.specs)

    @property
    def weight_bytes(self) -> int:
        """Yet to come, with the margin."""
        return 0 if self.is_loaded else int(MARGIN * self.parameters * self.spec.dtype_bytes)

    @property
    def run_bytes(self) -> int:
        return sum(self.work.bytes_on(spec) for spec in self.specs)

    @property
    def needed_bytes(self) -> int:
        return self.weight_bytes + self.run_bytes

    def check(self) -> None:
        """Raise ModelError where the weights that are yet to come do not fit, and DoesNotFit where the run
        does not fit beside them."""
        if not self.is_loaded:
            names = " with ".join(spec.name for spec in self.specs)
            check_weights_fit(names, self.parameters, self.spec.dtype_bytes, self.free_bytes)
        if self.needed_bytes > self.free_bytes:
            raise DoesNotFit(self._refusal())

    def _refusal(self) -> str:
        rows, several = self.work.rows, self.work.rows > 1
        weights = "" if self.is_loaded else f" and the weights of {self.spec.name}"
        lower = (
            "lower Max new tokens or Rows at once, or use fewer or shorter prompts"
            if several
            else "lower Max new tokens, or shorten the longest prompt"
        )
        return (
            f"{rows} prompt{'s' * several} at once with all new tokens{weights} may need "
            f"{gib(self.needed_bytes)} of memory, and {gib(self.free_bytes)} are free: {lower}."
        )
