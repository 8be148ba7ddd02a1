"""The classic faults of positions, mask and cache order, planted one after another, and what each check sees
of them: on the chosen model, and on a tiny random one with the other kind of positions.
"""

from __future__ import annotations

from typing import Any

import torch

from kshipra.engine.check import run_checks, tolerance
from kshipra.engine.layout import FAULTS, HONEST, Layout, layout_named
from kshipra.engine.runner import Engine
from kshipra.experiments.report.study import B_PROMPT
from kshipra.experiments.rig import Case, Rig
from kshipra.experiments.shapes import tiny
from kshipra.types import SamplingParams, plain

# Short and long: batched, the first is padded. Each ends in another word, so that no text is the other's.
PROMPTS = (B_PROMPT, "The quick brown fox jumps over the lazy dog, and in the evening the dog")
MODES = ("kv_cache", "static_batch", "two_at_a_time")
TOKENS = 20
LEARNED = ("gpt2",)  # families of ours whose positions are embeddings; the others' turn


def cases(rig: Rig) -> list[Case]:
    other = "llama" if rig.spec.family in LEARNED else "gpt2"
    return [
        Case(rig.spec.name, {"family": rig.spec.family, "tiny": False}),
        Case(f"a tiny random {other}", {"family": other, "tiny": True}),
    ]


@torch.inference_mode()
def measure(rig: Rig, case: Case) -> dict[str, Any]:
    """Of every fault, and of none: the engine's checks, and runs in each mode against plain passes."""
    engine = tiny(case.settings["family"]) if case.settings["tiny"] else rig.engine
    expected = _run(engine, "no_cache", HONEST)
    found = {}
    for fault in (None, *FAULTS):
        layout = layout_named(fault)
        found[fault or "none"] = {
            "checks": plain(run_checks(engine.model, layout, engine.device)),
            "runs": {mode: _held(_run(engine, mode, layout), expected) for mode in MODES},
        }
    return {"spec": plain(engine.model.spec), "tokens": TOKENS, "faults": found}


Run = list[list[tuple[int, torch.Tensor]]]  # of each row, of each new token: its id, and the logits (V) then


def _run(engine: Engine, mode: str, layout: Layout) -> Run:
    requests = engine.requests(PROMPTS, SamplingParams(TOKENS, ignore_eos=True))
    logits: dict[tuple[int, int], torch.Tensor] = {}

    def observe(row: int, place: int, own: torch.Tensor) -> None:
        logits[row, place] = own.cpu()

    ids: list[list[int]] = [[] for _ in requests]
    for event in engine.run(requests, mode=mode, layout=layout, observe=observe):
        for token in event.new_tokens:
            ids[token.row].append(token.id)
    return [[(id, logits[row, place]) for place, id in enumerate(own)] for row, own in enumerate(ids)]


def _held(found: Run, expected: Run) -> list[dict[str, Any]]:
    """Of each row: the ids, and the largest logit difference at every place up to where the ids part; behind
    it the two no longer read the same text."""
    rows = []
    for own, right in zip(found, expected, strict=True):
        ids, right_ids = [id for id, _ in own], [id for id, _ in right]
        parted = next((place for place in range(TOKENS) if ids[place] != right_ids[place]), None)
        together = range(TOKENS if parted is None else parted + 1)
        rows.append(
            {
                "ids": ids,
                "right_ids": right_ids,
                "parted": parted,  # among the new tokens, from 0
                "difference": [_difference(own[place][1], right[place][1]) for place in together],
                "tolerance": tolerance(torch.stack([logits for _, logits in right])),
            }
        )
    return rows


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return (one.float() - other.float()).abs().max().item()
