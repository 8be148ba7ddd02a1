"""Guesses never change a token, whoever makes them and however many rows share a pass (case A9); what came of
them is counted row by row."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_schedules import SHARED, batchings, ended, many, run, schedules
from transformers import MistralConfig, MistralForCausalLM

from conftest import SMALL, Letters, byte_level_tokenizer, loud, make_gpt2, make_llama
from kshipra.engine import drafts, job
from kshipra.engine.cache import KVCache
from kshipra.engine.compiled import CompiledModel
from kshipra.engine.layout import FAULTS
from kshipra.engine.prefix import PrefixCache
from kshipra.engine.runner import Engine
from kshipra.engine.sampling import allowed_probabilities, next_ids
from kshipra.errors import InputError
from kshipra.metrics import acceptance
from kshipra.models.loading import wrap_model
from kshipra.modes.speculative import looked_up
from kshipra.types import Batching, SamplingParams

PLAIN = SamplingParams(24, ignore_eos=True)
DRAWN = replace(PLAIN, temperature=1.0, top_k=4)
PROMPTS = [SHARED[:length] for length in (3, 40, 9, 17)]


def near(make: Callable, noise: float) -> torch.nn.Module:
    """A model that often says what `make()` would say."""
    model, generator = make(), torch.Generator().manual_seed(2)
    for weight in model.parameters():
        weight.data += noise * torch.randn(weight.shape, generator=generator)
    return model


def pair(make: Callable, draft: torch.nn.Module | None = None, **options) -> Engine:
    """An engine whose draft is `draft`, or else the same model again."""
    own = draft if draft is not None else make()
    return Engine(make(), Letters(), draft=Engine(own, Letters(), **options), **options)


DRAFTS = {
    "itself": lambda: pair(make_gpt2),
    "near": lambda: pair(make_llama, near(make_llama, 0.01)),
    "stranger, shorter context": lambda: pair(make_gpt2, make_llama(max_position_embeddings=64)),
}


@pytest.fixture(scope="module", params=list(DRAFTS))
def engine(request) -> Engine:
    return DRAFTS[request.param]()


@pytest.fixture(scope="module")
def closer() -> Engine:
    return DRAFTS["near"]()


@settings(many, max_examples=40)
@given(schedule=schedules, batching=batchings, ends=st.sampled_from([0, 30]), warm=st.booleans())
def test_a_draft_changes_no_request(engine, schedule, batching, ends, warm):
    """Whatever limits, seeds, rows and reused prefixes; with `ends` ids of the vocabulary that end a row."""
    solo = run(engine, schedule, "kv_cache")
    said = [id for row in solo.rows for id in row.token_ids]
    engine.model.eos_ids = frozenset(sorted(set(said))[:ends])
    prefixes = PrefixCache(10**6) if warm else None
    try:
        solo = ended(run(engine, schedule, "kv_cache"))
        for _ in range(2 if warm else 1):
            found = run(engine, schedule, "draft_model", batching=batching, prefixes=prefixes)
            assert ended(found) == solo
    finally:
        engine.model.eos_ids = frozenset()


@pytest.mark.parametrize("params", [PLAIN, replace(DRAWN, seed=3), replace(PLAIN, repetition_penalty=1.3)])
@pytest.mark.parametrize("rows", [1, 4])
def test_a_model_that_guesses_for_itself_is_always_right(params, rows):
    engine = pair(make_gpt2)
    schedule = [(prompt, replace(params, max_new_tokens=24 + row)) for row, prompt in enumerate(PROMPTS)]
    found = run(engine, schedule, "draft_model", batching=Batching(rows=rows))
    assert [acceptance(row) for row in found.rows] == [1.0] * 4
    for step in found.steps:
        assert len(step.new_tokens) == step.drafted_tokens + len(step.rows)
    if rows == 1:
        first = [step.drafted_tokens for step in found.steps if step.rows == (0,)]
        assert first == [0, 4, 5, 6, 4]  # more as they come true, and never past the limit of 24


def test_acceptance_is_each_rows_own(closer):
    schedule = [(prompt, replace(PLAIN, max_new_tokens=30)) for prompt in PROMPTS]
    alone = [run(closer, [one], "draft_model").rows[0] for one in schedule]
    found = run(closer, schedule, "draft_model", batching=Batching(rows=4))
    assert [acceptance(row) for row in found.rows] == [acceptance(row) for row in alone]
    assert len({acceptance(row) for row in found.rows}) > 1
    assert 0.2 < acceptance(found) < 0.95
    assert found.drafted_tokens == sum(row.drafted_tokens for row in found.rows)
    assert found.accepted_tokens == sum(row.accepted_tokens for row in found.rows)
    assert 0 < found.draft_s < sum(step.elapsed_s for step in found.steps)
    assert run(closer, schedule, "kv_cache").rows[0].drafted_tokens == 0
    assert acceptance(run(closer, schedule, "kv_cache")) is None


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("ending", [None, 1, 2, 3, 4])
def test_no_token_past_a_limit_an_end_token_or_the_context(limit, ending):
    """Four guesses at first: limits around that, an end token inside of them, and a context that is full."""
    engine = pair(make_gpt2)
    solo = run(engine, [(PROMPTS[0], replace(PLAIN, max_new_tokens=limit))], "kv_cache")
    params = SamplingParams(limit)
    if ending is not None and ending < limit:
        engine.model.eos_ids = frozenset([solo.rows[0].token_ids[ending]])
    expected = run(engine, [(PROMPTS[0], params)], "kv_cache")
    found = run(engine, [(PROMPTS[0], params)], "draft_model")
    assert ended(found) == ended(expected)
    assert acceptance(found) in (None, 1.0)  # so nothing is guessed behind an end
    full = (SHARED * 3)[: engine.model.spec.context - limit + 1]
    found = run(engine, [(full, replace(PLAIN, max_new_tokens=20))], "draft_model")
    assert found.rows[0].finish_reason == "context"
    assert ended(found) == ended(run(engine, [(full, replace(PLAIN, max_new_tokens=20))], "kv_cache"))


def forced(logits, rows):
    """The model's own choice, but every fifth token is another."""
    own = next_ids(logits, rows)
    turn = torch.tensor([len(seen) % 5 == 0 for _, seen, _ in rows])
    return torch.where(turn, (own + 1) % logits.shape[1], own)


def wrong_guesses(engine: Engine) -> int:
    """How often the same model, as its own draft, did not expect a token of forced texts that was not forced:
    never, if it reads the text rightly behind every guess that was rejected."""
    wrong = 0
    for params in (PLAIN, replace(DRAWN, seed=2)):
        schedule = [(prompt, params) for prompt in PROMPTS]
        lengths = [len(prompt) for prompt in PROMPTS]
        found = run(engine, schedule, "draft_model", batching=Batching(rows=3), choose=forced)
        for step in found.steps:
            new = [token.row for token in step.new_tokens]
            for row, guessed in zip(step.rows, step.row_drafted_tokens, strict=False):
                last_place = lengths[row] + new.count(row) - 1
                wrong += new.count(row) <= guessed and last_place % 5 != 0
            for row in new:
                lengths[row] += 1
    return wrong


class NeverCropped(KVCache):
    def crop(self, columns: int) -> None:
        pass


class CroppedLate(KVCache):
    def crop(self, columns: int) -> None:
        super().crop(min(self.columns, columns + 1))


def other_draws(logits, rows):
    return next_ids(logits, [(params, seen, torch.Generator()) for params, seen, _ in rows])


def test_a_draft_reads_on_rightly_behind_rejected_guesses():
    assert wrong_guesses(pair(make_gpt2)) == 0


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("KVCache", NeverCropped),
        ("KVCache", CroppedLate),
        ("HONEST", FAULTS["pads_counted"]),
        ("HONEST", FAULTS["pads_visible"]),
        ("HONEST", FAULTS["restarted"]),
        ("next_ids", other_draws),
    ],
)
def test_faults_of_a_draft_are_seen(monkeypatch, name, fault):
    """They change no token, so only wrong guesses show them."""
    monkeypatch.setattr(drafts, name, fault)
    try:
        seen = wrong_guesses(pair(make_gpt2)) > 0
    except (RuntimeError, IndexError):
        seen = True  # the model itself noticed
    assert seen


def one_guess_too_many(choose):
    def chosen(job, batch, logits, guesses):
        taken = choose(job, batch, logits, guesses)
        return [
            [*ids[:-1], *draft[len(ids) - 1 : len(ids)], *ids[-1:]][: logits.shape[1]]
            for ids, draft in zip(taken, guesses or [()] * len(taken), strict=True)
        ]

    return chosen


def all_guesses_kept(settle):
    return lambda batch, guesses, accepted: settle(batch, guesses, [guesses] * len(accepted))


def one_column_short(settle):
    return lambda batch, guesses, accepted: settle(batch, guesses, [max(0, one - 1) for one in accepted])


@pytest.mark.parametrize(
    ("owner", "name", "fault"),
    [
        (job.Job, "_choose", one_guess_too_many),
        (job.Batch, "settle", all_guesses_kept),
        (job.Batch, "settle", one_column_short),
    ],
)
def test_faults_of_the_check_are_seen(closer, monkeypatch, owner, name, fault):
    schedule = [(prompt, PLAIN) for prompt in PROMPTS]
    solo = ended(run(closer, schedule, "kv_cache"))
    assert ended(run(closer, schedule, "draft_model", batching=Batching(rows=3))) == solo
    monkeypatch.setattr(owner, name, fault(getattr(owner, name)))
    try:
        seen = ended(run(closer, schedule, "draft_model", batching=Batching(rows=3))) != solo
    except (RuntimeError, AssertionError):
        seen = True  # the engine itself noticed
    assert seen


@pytest.mark.parametrize("layout", ["pads_counted", "pads_visible", "restarted"])
def test_columns_of_rejected_guesses_have_no_position_and_are_not_seen(layout):
    """The prompts are of one length, so the only pads are rejected guesses."""
    engine = pair(make_gpt2, near(make_gpt2, 0.01))
    schedule = [([row, *SHARED[:9]], PLAIN) for row in range(3)]
    solo = ended(run(engine, schedule, "kv_cache"))
    found = run(engine, schedule, "draft_model", batching=Batching(rows=3), layout=FAULTS[layout])
    assert ended(found) != solo


SEEDS = 2000


def strangeness(engine: Engine) -> float:
    """By how many standard deviations the second and third tokens of SEEDS texts are off the model's own
    probabilities, by Pearson's chi-squared; guesses stand at both."""
    schedule = [(SHARED[:7], replace(DRAWN, max_new_tokens=4, seed=seed)) for seed in range(SEEDS)]
    found = run(engine, schedule, "draft_model", batching=Batching(rows=500))
    assert found.drafted_tokens >= 2 * SEEDS
    assert 0.2 < acceptance(found) < 0.9
    chi_squared, freedom = 0.0, 0
    texts = [row.token_ids for row in found.rows]
    for start in {text[:n] for text in texts for n in (1, 2)}:
        counted = [text[len(start)] for text in texts if text[: len(start)] == start]
        p = own_probabilities(engine, [*SHARED[:7], *start])
        if len(counted) < 100:
            continue
        for id in p.nonzero()[:, 0].tolist():
            expected = p[id].item() * len(counted)
            chi_squared += (counted.count(id) - expected) ** 2 / expected
        freedom += int((p > 0).sum()) - 1
    assert freedom >= 12
    return (chi_squared - freedom) / (2 * freedom) ** 0.5


@torch.inference_mode()
def own_probabilities(engine: Engine, ids: list[int]) -> torch.Tensor:
    """(V) after `ids`, in one plain pass."""
    logits = engine.model.forward(torch.tensor([ids]), torch.arange(len(ids))[None], None, None, 1)
    return allowed_probabilities(logits[0, -1], DRAWN)


def test_sampling_with_guesses_keeps_the_distribution(closer, monkeypatch):
    """And the check sees the classic fault: after a rejection the token is drawn anew from all of p."""
    assert abs(strangeness(closer)) < 3
    choose = job.Job._choose

    def drawn_anew(job, batch, logits, guesses):
        taken = choose(job, batch, logits, guesses)
        for place, (ids, draft) in enumerate(zip(taken, guesses, strict=bool(guesses))):
            if len(ids) <= len(draft):
                row, own = batch.rows[place], logits[place, len(ids) - 1]
                ids[-1] = job.choose(own[None], [(row.params, row.ids + ids[:-1], row.generator)]).item()
        return taken

    monkeypatch.setattr(job.Job, "_choose", drawn_anew)
    assert strangeness(closer) > 6


def test_the_draws_of_both_models_are_the_same(closer):
    """A draft that draws with other numbers than the model guesses right less often."""
    schedule = [(prompt, replace(DRAWN, seed=row)) for row, prompt in enumerate(PROMPTS * 4)]
    together = acceptance(run(closer, schedule, "draft_model", batching=Batching(rows=16)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drafts, "next_ids", other_draws)
        apart = acceptance(run(closer, schedule, "draft_model", batching=Batching(rows=16)))
    assert together > 1.3 * apart


def test_the_bytes_of_both_caches_are_counted():
    engine = pair(make_gpt2, make_gpt2(n_layer=1))
    solo = run(engine, [(SHARED[:20], replace(PLAIN, max_new_tokens=2))], "kv_cache").steps[-1]
    both = run(engine, [(SHARED[:20], replace(PLAIN, max_new_tokens=3))], "draft_model").steps[1]
    a_column = solo.kv_bytes / 21
    assert both.drafted_tokens == 1
    assert both.kv_bytes == (22 + 21 / 2) * a_column  # the draft has half the layers, and reads no guess
    assert both.kv_held_bytes == 1.5 * solo.kv_held_bytes


@pytest.mark.skipif(shutil.which("g++") is None, reason="There is no compiler here.")
@pytest.mark.parametrize("weights", ["native", "int8"])
def test_compiled_steps_and_smaller_weights_take_guesses_too(weights):
    """Passes over guesses take the model's own forward, those of the draft the compiled step."""

    def engine(draft: Engine | None = None) -> Engine:
        plain = wrap_model(make_llama().float(), "native", weights)
        return Engine(CompiledModel(plain), Letters(), draft=draft)

    both = engine(engine())
    schedule = [(prompt, PLAIN) for prompt in PROMPTS]
    solo = ended(run(both, schedule, "kv_cache"))
    for mode in ("draft_model", "speculative"):
        assert ended(run(both, schedule, mode, batching=Batching(rows=2))) == solo
    assert acceptance(run(both, schedule, "draft_model")) > 0.9


def test_the_adapter_takes_guesses_and_its_window_counts_tokens_and_not_columns():
    mistral = loud(MistralForCausalLM(MistralConfig(**SMALL, sliding_window=8)))
    engine = pair(lambda: mistral, near(lambda: copy.deepcopy(mistral), 0.01), implementation="transformers")
    schedule = [(prompt, PLAIN) for prompt in PROMPTS]
    found = run(engine, schedule, "draft_model", batching=Batching(rows=4))
    assert ended(found) == ended(run(engine, schedule, "no_cache"))
    assert 0.2 < acceptance(found) < 0.95


def test_a_draft_must_speak_in_the_same_token_ids():
    def refused(theirs, **changes) -> str:
        draft = Engine(make_gpt2(**changes), theirs)
        with pytest.raises(InputError, match="same tokenizer") as error:
            Engine(make_gpt2(), ours, draft=draft)
        assert str(error.value).count(".") == 1
        return str(error.value)

    class Capitals(Letters):
        def decode(self, ids: list[int]) -> str:
            return super().decode(ids).upper()

    ours = Letters()
    refused(Capitals())
    refused(byte_level_tokenizer())
    ours = byte_level_tokenizer()
    more = byte_level_tokenizer()
    more.add_tokens(["word"])
    assert "token 259" in refused(more)
    Engine(make_gpt2(), ours, draft=Engine(make_gpt2(), byte_level_tokenizer()))


def test_one_of_the_models_may_have_more_rows_than_the_tokenizer_has_tokens():
    """As Qwen's larger models do: what only one of them knows is no guess, and is read as something else."""
    penalised = replace(PLAIN, repetition_penalty=1.3)
    schedule = [([*prompt, 998, 999], own) for prompt in PROMPTS for own in (PLAIN, penalised)]
    for ours, theirs in ((1000, 900), (900, 1000)):
        engine = Engine(
            make_gpt2(vocab_size=ours),
            Letters(),
            draft=Engine(make_gpt2(vocab_size=theirs), Letters()),
        )
        asked = [([id % ours for id in prompt], params) for prompt, params in schedule]
        solo = ended(run(engine, asked, "kv_cache"))
        assert ended(run(engine, asked, "draft_model", batching=Batching(rows=3))) == solo


def test_without_a_draft_the_mode_says_what_to_do():
    with pytest.raises(InputError, match="draft=NAME"):
        Engine(make_gpt2(), Letters()).generate([[1]], mode="draft_model")


def script(loop: list[int]) -> Callable:
    return lambda logits, rows: torch.tensor([loop[loop.index(seen[-1]) + 1] for _, seen, _ in rows])


def test_a_text_that_repeats_is_looked_up(closer):
    loop = [5, 6, 7, 8, 9] * 6
    asked = [(loop, replace(PLAIN, max_new_tokens=30))]
    found = run(closer, asked, "speculative", choose=script(loop))
    assert found.rows[0].token_ids == tuple(loop)
    assert [step.drafted_tokens for step in found.steps] == [0, 16, 11]
    closer.model.eos_ids = frozenset({7})
    try:
        found = run(closer, [(loop, SamplingParams(20))], "speculative", choose=script(loop))
    finally:
        closer.model.eos_ids = frozenset()
    assert (found.rows[0].token_ids, found.rows[0].finish_reason) == ((5, 6, 7), "stop")
    assert found.drafted_tokens == 2  # nothing behind the end


@pytest.mark.parametrize(
    ("ids", "most", "expected"),
    [
        ([1, 2, 3, 4, 1, 2, 3], 2, [4, 1]),
        ([1, 2, 3, 4, 1, 2, 3, 9, 1, 2, 3], 1, [9]),  # the latest place
        ([1, 2, 3, 1, 2, 3], 5, [1, 2, 3, 1, 2]),  # on into itself
        ([7, 7, 7, 7], 3, [7, 7, 7]),
        ([1, 2, 3, 4, 9, 2, 3], 4, []),  # two alike are not enough
        ([1, 2, 3, 4, 1, 2, 3], 0, []),
        ([1, 2], 4, []),
    ],
)
def test_looked_up(ids, most, expected):
    assert looked_up(ids, most) == expected
