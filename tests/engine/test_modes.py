"""Every mode gives the ids of each prompt alone without cache, whatever stands beside it (cases A1 to A3,
A7)."""

from __future__ import annotations

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from checks import RAGGED, all_modes_agree, greedy_ids, logits_in_pieces
from conftest import SMALL, VOCABULARY, Letters, loud, make_gpt2, make_llama
from kshipra.engine.runner import Engine
from kshipra.modes import MODES
from kshipra.types import SamplingParams


def test_all_modes_agree_on_ragged_prompts(engine):
    all_modes_agree(engine)


def test_adapter_agrees_with_our_own(reference, engine):
    adapter = Engine(reference, Letters(), implementation="transformers")
    all_modes_agree(adapter)
    assert greedy_ids(adapter, RAGGED, "static_batch") == greedy_ids(engine, RAGGED, "static_batch")


def test_our_ids_are_those_of_transformers_generate(reference, engine):
    for prompt, ours in zip(RAGGED, greedy_ids(engine, RAGGED, "static_batch"), strict=True):
        ids = torch.tensor([prompt])
        theirs = reference.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False, pad_token_id=0
        )
        assert tuple(theirs[0, len(prompt) :].tolist()) == ours


@pytest.mark.parametrize("pads", range(9))
def test_every_pad_count(engine, pads):
    short = [7, 8, 9]
    solo = greedy_ids(engine, [short], "no_cache")[0]
    together = greedy_ids(engine, [short, list(range(200, 203 + pads))], "static_batch")[0]
    assert together[0] == solo[0]
    assert together == solo


@pytest.mark.parametrize("pad_id", [0, 123, VOCABULARY - 1])
def test_a_pad_weighs_exactly_nothing(engine, pad_id):
    """Logits to the bit, because a masked score becomes an exact zero."""
    rows = [[7, 8, 9], list(range(100, 130))]
    assert torch.equal(
        logits_in_pieces(engine.model, rows, [29], 5), logits_in_pieces(engine.model, rows, [29], pad_id)
    )


def test_neighbours_and_order_do_not_matter(engine):
    first = greedy_ids(engine, RAGGED, "static_batch")
    assert greedy_ids(engine, RAGGED[::-1], "static_batch") == first[::-1]
    other = greedy_ids(engine, [RAGGED[0], RAGGED[1], list(range(300, 330))], "static_batch")
    assert other[:2] == first[:2]


def test_rows_that_end_early_leave_the_others_alone(engine):
    limits = (3, 24, 0)
    params = [SamplingParams(limit, ignore_eos=True) for limit in limits]
    solo = greedy_ids(engine, RAGGED, "no_cache")
    for mode in MODES:
        rows = engine.generate(RAGGED, mode=mode.name, params=params).rows
        assert [row.token_ids for row in rows] == [ids[:n] for ids, n in zip(solo, limits, strict=True)]


def test_runs_leave_nothing_behind(engine):
    """Case A7: modes in any order, also after a run that was stopped and one that was thrown away."""
    first = {mode.name: greedy_ids(engine, RAGGED, mode.name) for mode in MODES}
    abandoned = engine.stream(RAGGED, mode="static_batch", params=SamplingParams(24))
    next(abandoned)
    abandoned.close()
    asked = iter([False, False, True])
    engine.generate(RAGGED, mode="kv_cache", params=SamplingParams(24), stopped=lambda: next(asked, True))
    for mode in (*MODES, *MODES[::-1]):
        assert greedy_ids(engine, RAGGED, mode.name) == first[mode.name]


def test_a_sliding_window_is_kept_by_the_adapter():
    """The window ends inside the prompt and inside the new text; transformers' own masks are the
    reference."""
    mistral = loud(MistralForCausalLM(MistralConfig(**SMALL, sliding_window=8)))
    engine = Engine(mistral, Letters())
    all_modes_agree(engine)
    prompt = torch.tensor([RAGGED[2]])
    theirs = mistral.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=24, do_sample=False, pad_token_id=0
    )
    assert tuple(theirs[0, prompt.shape[1] :].tolist()) == greedy_ids(engine, RAGGED, "static_batch")[2]


@pytest.mark.parametrize("make", [make_gpt2, make_llama])
def test_passes_and_pads_are_counted(make):
    engine = Engine(make(), Letters())
    batch = engine.generate(RAGGED, mode="static_batch", params=SamplingParams(5))
    assert batch.forward_passes == 5
    assert batch.steps[0].processed_tokens == 38
    assert batch.steps[0].pad_tokens == 3 * 30 - 38
    assert [step.pad_tokens for step in batch.steps[1:]] == [0] * 4
    assert engine.generate(RAGGED, mode="kv_cache", params=SamplingParams(5)).forward_passes == 15
    no_cache = engine.generate(RAGGED, mode="no_cache", params=SamplingParams(5))
    assert no_cache.kv_bytes == 0
    assert [step.processed_tokens for step in no_cache.steps[:5]] == [3, 4, 5, 6, 7]


def test_a_prompt_read_in_pairs_counts_what_goes_in_and_decodes_after_it(engine):
    steps = engine.generate(
        [[5, 4, 3, 2, 1]], mode="two_at_a_time", params=SamplingParams(3, ignore_eos=True)
    ).steps
    assert [step.processed_tokens for step in steps] == [2, 2, 1, 1, 1]
    assert [step.phase for step in steps] == ["prefill"] * 3 + ["decode"] * 2
    assert [len(step.new_tokens) for step in steps] == [0, 0, 1, 1, 1]
    assert [step.pad_tokens for step in steps] == [0] * 5
