"""transformers' own continuous batching on several prompts, to its end, and when each of its passes was over.
Refuses to know rows and events.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from kshipra.errors import ModelError
from kshipra.models.hf import TransformersModel

PAGE_TOKENS = 256  # that library's own; by itself it would take most of the memory for its pages


class Asked(NamedTuple):
    prompt_ids: Sequence[int]
    most: int  # new tokens
    eos_ids: Sequence[int]


@dataclass
class Pass:
    """One of its passes: the tokens that went in, and those that came out until `end_s` on the monotonic
    clock, as (prompt, id)."""

    taken: int
    over_s: float  # its forward
    end_s: float = 0.0
    tokens: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Served:
    started_s: float  # when the first prompt was handed in
    passes: list[Pass]
    cache_tokens: int  # that there was room for


@torch.no_grad()  # and no inference mode: its loop writes, in a thread of its own, into what is made here
def serve(model: TransformersModel, asked: Sequence[Asked], *, rows: int) -> Served:
    """Greedy texts of all that is `asked`, `rows` of them at once.

    What is made once for a server, pages and thread, is not in the time. Raises ModelError with the reason
    where that library gives up.
    """
    pages = rows * -(-max(len(one.prompt_ids) + one.most for one in asked) // PAGE_TOKENS)
    config = ContinuousBatchingConfig(
        page_size=PAGE_TOKENS, num_blocks=pages, max_requests_per_batch=rows, allow_block_sharing=False
    )
    passes: list[Pass] = []

    def over(_: Any, __: Any, arguments: dict[str, Any], ___: Any) -> None:
        passes.append(Pass(arguments["input_ids"].numel(), time.perf_counter()))

    threads = torch.get_num_threads()
    hooks = (  # the number of threads holds for one thread, and that library's loop has its own
        model.model.register_forward_pre_hook(lambda *_: torch.set_num_threads(threads)),
        model.model.register_forward_hook(over, with_kwargs=True),
    )
    try:
        with model.model.continuous_batching_context_manager(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1),
            continuous_batching_config=config,
        ) as manager:
            started_s = time.perf_counter()
            for number, one in enumerate(asked):
                manager.add_request(
                    list(one.prompt_ids),
                    request_id=str(number),
                    max_new_tokens=one.most,
                    eos_token_id=list(one.eos_ids),
                    record_timestamps=True,
                )
            outputs = _finished(manager, len(asked))
    finally:
        for hook in hooks:
            hook.remove()
    _hand_out(passes, outputs)
    return Served(started_s, passes, pages * PAGE_TOKENS)


def _finished(manager: Any, count: int) -> dict[int, Any]:
    outputs: dict[int, Any] = {}
    while len(outputs) < count:
        output = manager.get_result(timeout=1)
        if output is not None and output.is_finished():
            if output.error is not None:
                raise ModelError(f"transformers' continuous batching gave up: {output.error}.")
            outputs[int(output.request_id)] = output
        elif output is None and not manager.is_running():
            raise ModelError("transformers' continuous batching ended before its requests: leave it out.")
    return outputs


def _hand_out(passes: Sequence[Pass], outputs: dict[int, Any]) -> None:
    """Give each token to the pass that was over last when it was chosen."""
    chosen = sorted(
        (at_s, number, id)
        for number, output in outputs.items()
        for at_s, id in zip(output.timestamps, output.generated_tokens, strict=True)
    )
    ends_s = [later.over_s for later in passes[1:]] + [float("inf")]
    place = 0
    for at_s, number, id in chosen:
        while at_s > ends_s[place]:
            place += 1
        passes[place].tokens.append((number, id))
        passes[place].end_s = at_s
    for own in passes:
        own.end_s = own.end_s or own.over_s
