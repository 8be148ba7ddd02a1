"""The page's one public endpoint, `compare`: for gradio_client, plain HTTP and MCP. It takes what the form
takes and gives the document that the page exports.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import gradio as gr
from gradio.context import LocalContext

from kshipra.backends.base import Backend
from kshipra.errors import KshipraError
from kshipra.recipes import USUAL_KEYS
from kshipra.types import Ended, Failed, ModelChoice
from kshipra.ui import words
from kshipra.ui.form import Form, in_order, plan_of, with_limits
from kshipra.ui.record import Recording

POLL_S = 0.1

_log = logging.getLogger(__name__)


def compare_endpoint(
    backend: Backend, choice: ModelChoice
) -> Callable[..., Coroutine[Any, Any, dict[str, Any]]]:
    """The function behind `compare`; its docstring and type hints are what programs read."""

    async def compare(
        prompts: list[str],
        ways: list[str] = list(USUAL_KEYS),  # noqa: B006  (read only; programs are shown this default)
        max_new_tokens: int = 24,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        repetition_penalty: float = 1.0,
        seed: int | None = None,
        chat: bool = False,
        model: str = choice.model,
        device: str = choice.device,
        dtype: str = choice.dtype,
        limits: list[int] = [],  # noqa: B006
        rows: int | None = None,
        reuse: bool = False,
        draft: str = "",
        server: str = "",
        server_model: str = "",
        server_key: str = "",
    ) -> dict[str, Any]:
        """Complete prompts with one language model in several ways of generating, measure each, and compare.

        The ways run one after another on the same prompts, so that their numbers are clean. The answer is
        one JSON document: settings, machine, versions, every step with its time, memory and tokens, the
        comparison of all tokens, and a prediction from the machine's own bandwidth and arithmetic.

        Args:
            prompts: From 1 to 16 texts that the model goes on from.
            ways: Ways of generating: no_cache, kv_cache, static_batch, continuous, speculative, compiled,
                int8, compiled_int8, compiled_bf16, transformers_generate, draft_model, server. One that
                cannot run on this machine or model is named in summary.verdict.
            max_new_tokens: Most new tokens a prompt, from 0 to 2048.
            temperature: 0 is greedy.
            top_k: 0 is off.
            top_p: 1 is off.
            repetition_penalty: 1 is off.
            seed: A whole number; none draws a fresh one, which the answer shows.
            chat: Whether prompts are sent through the model's chat template.
            model: A catalogue name, a Hub id, a folder or a .gguf file.
            device: auto, cpu, cuda or mps.
            dtype: auto, float32, bfloat16 or float16.
            limits: Most new tokens of each prompt, one a prompt; empty takes max_new_tokens for all.
            rows: Most prompts in one pass, for static_batch and continuous; none leaves it to each.
            reuse: Whether ways that cache go on from what earlier calls have read. False runs cold.
            draft: The smaller model with the same tokenizer that guesses in draft_model; a name as for model.
            server: For the way server, the address of one that speaks OpenAI's interface, as
                http://127.0.0.1:8000; empty takes this machine's own setting.
            server_model: The model's name on that server.
            server_key: Its key, if it needs one; it is kept nowhere.

        Returns:
            The document of the run. Its main parts: ways[i].result (end_to_end_tok_per_s, decode_tok_per_s,
            ttft_s, step_latency_s, peak_extra_bytes, rows[j].text, steps), comparisons, summary.
        """
        how = "chat" if chat else "raw"
        try:
            form = Form(
                with_limits(prompts, limits), ways, model, device, dtype, how, max_new_tokens, temperature,
                top_k, top_p, repetition_penalty, seed, rows, reuse, draft, server, server_model,
                server_key,
            )  # fmt: skip
            return await _document(backend, form, choice)
        except KshipraError as error:
            raise gr.Error(str(error), print_exception=False) from error
        except Exception as error:
            _log.exception("compare failed")
            raise gr.Error(words.BUG, print_exception=False) from error

    return compare


async def _caller_has_gone() -> bool:
    """Whether nobody waits any more for the call that is being answered. Gradio notes it on its event, and
    would let the call go on; a call past its queue has no event, only its request."""
    page, event_id = LocalContext.blocks.get(None), LocalContext.event_id.get(None)
    request = LocalContext.request.get(None)
    if page is None or event_id is None:
        return request is not None and request.request is not None and await request.request.is_disconnected()
    event = page._queue.event_ids_to_events.get(event_id)
    return event is None or event.closed or not event.alive


async def _document(backend: Backend, form: Form, choice: ModelChoice) -> dict[str, Any]:
    """Run the plan of `form` to its end. However this ends, cancelled included, its run is stopped."""
    plan = in_order(plan_of(form, choice, backend.limits))
    run, recording = backend.submit(plan), Recording(plan)
    try:
        failure: str | None = None
        missing: str | None = None
        while True:
            if await _caller_has_gone():
                run.stop()  # its end comes as a message
            for message in run.messages(0):
                recording.add(message)
                if isinstance(message, Failed) and message.unavailable:
                    missing = message.sentence
                elif isinstance(message, Failed):
                    failure = message.sentence
                if isinstance(message, Ended):
                    document = await asyncio.to_thread(recording.document)  # long for a long run
                    if failure is not None or document is None:
                        nothing = missing or "The run was stopped before anything had ended."
                        raise KshipraError(failure or nothing)
                    return document
            await asyncio.sleep(POLL_S)
    finally:
        run.stop()
