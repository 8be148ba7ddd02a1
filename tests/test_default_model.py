"""The real default model: parity with transformers, and every mode's ids in fp32 (fetched once from PyPI)."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from checks import all_modes_agree, greedy_ids, logits_in_pieces, planted
from kshipra.costs import kv_bytes_per_token, weight_bytes
from kshipra.engine.layout import HONEST
from kshipra.engine.runner import Engine, load
from kshipra.models import catalogue
from kshipra.models.outlook import shape_of
from kshipra.models.wheel import fetched
from kshipra.modes import MODES
from kshipra.types import SamplingParams

pytestmark = pytest.mark.slow
PROMPTS = [
    "Water boils at",
    "The future of artificial intelligence is",
    "Once upon a time, in a small village by the sea, there lived a fisherman who had never learned to",
]


@pytest.fixture(scope="module")
def engine() -> Engine:
    found = load(catalogue.DEFAULT)
    yield found
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def ids(engine) -> list[list[int]]:
    return [engine.tokenizer.encode(prompt) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def reference(engine):
    entry = catalogue.find(catalogue.DEFAULT)
    folder = fetched(entry, lambda *_: None)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@torch.inference_mode()
def test_logits_are_those_of_transformers(engine, reference, ids):
    for row in ids:
        tensor = torch.tensor([row])
        places = torch.arange(len(row))[None]
        ours = engine.model.forward(tensor, places, None, None, len(row))
        assert (ours - reference(tensor).logits).abs().max() < 1e-3


def test_the_catalogue_knows_the_shape_before_it_is_loaded(engine):
    before, spec = shape_of(catalogue.DEFAULT, torch.float32), engine.model.spec
    for name in ("family", "layers", "heads", "kv_heads", "head_size", "width", "vocabulary", "context"):
        assert getattr(before, name) == getattr(spec, name)
    assert before.parameters == spec.parameters


def test_ids_are_those_of_transformers_generate(engine, reference, ids):
    ours = greedy_ids(engine, ids, "static_batch", 24)
    for row, found in zip(ids, ours, strict=True):
        tensor = torch.tensor([row])
        theirs = reference.generate(
            tensor,
            attention_mask=torch.ones_like(tensor),
            max_new_tokens=24,
            min_new_tokens=24,
            do_sample=False,
            pad_token_id=0,
        )
        assert tuple(theirs[0, len(row) :].tolist()) == found


def test_every_mode_gives_the_ids_of_each_prompt_alone(engine, ids):
    all_modes_agree(engine, ids)


def test_transformers_generate_ends_rows_as_the_other_modes_do(engine, reference):
    """By length, by a stop text, and, in a chat, by the end token."""
    peer = Engine(reference, engine.tokenizer, implementation="transformers")
    length = SamplingParams(24, ignore_eos=True)
    stop = SamplingParams(24, stop=(engine.generate(PROMPTS[:1], params=length).rows[0].text[20:26],))
    for prompts, params, chat, reasons in (
        ([PROMPTS[0], PROMPTS[1]], [stop, length], False, ["stop", "length"]),
        (["What is the capital of France?"], SamplingParams(24), True, ["stop"]),
    ):
        ours = engine.generate(prompts, params=params, chat=chat)
        theirs = peer.generate(prompts, mode="transformers_generate", params=params, chat=chat)
        assert [row.finish_reason for row in theirs.rows] == reasons
        assert [row.token_ids for row in theirs.rows] == [row.token_ids for row in ours.rows]
        assert [row.text for row in theirs.rows] == [row.text for row in ours.rows]
        assert theirs.kv_bytes == ours.kv_bytes


@pytest.mark.parametrize("pads", range(9))
def test_every_pad_count(engine, ids, pads):
    short = ids[0]
    longer = (ids[2] * 2)[: len(short) + pads]
    assert greedy_ids(engine, [short, longer], "static_batch", 12)[0] == _solo(engine, short)


def _solo(engine: Engine, row: list[int]) -> tuple[int, ...]:
    return greedy_ids(engine, [row], "no_cache", 12)[0]


@pytest.mark.parametrize("cut", [1, 5, 12, 19])
def test_a_cache_in_pieces_is_one_pass(engine, ids, cut):
    row = ids[2]
    whole = logits_in_pieces(engine.model, [row], [])
    assert (logits_in_pieces(engine.model, [row], [cut]) - whole).abs().max() < 1e-3


def test_a_wrong_decode_position_would_be_seen(engine, ids):
    """The checks above are sharp enough for one position on the real model too."""

    def off_by_one(valid, columns):
        where = HONEST.positions(valid, columns)
        where[:, -1] += 1
        return where

    solo = _solo(engine, ids[0])
    faulty = planted(engine, HONEST._replace(positions=off_by_one))
    assert greedy_ids(faulty, [ids[0]], "kv_cache", 12)[0] != solo


def test_sampled_rows_do_not_depend_on_the_mode(engine, ids):
    params = [
        SamplingParams(12, temperature=0.8, top_p=0.9, seed=seed, ignore_eos=True) for seed in (1, 2, 3)
    ]
    runs = {mode.name: engine.generate(ids, mode=mode.name, params=params) for mode in MODES}
    first, *others = ([row.token_ids for row in run.rows] for run in runs.values())
    assert all(other == first for other in others)


def test_what_it_costs(engine):
    spec = engine.model.spec
    assert spec.parameters == 134_515_008
    assert weight_bytes(spec) == 538_060_032
    assert kv_bytes_per_token(spec) == 45 * 1024


def test_250_cached_tokens_by_formula_and_tensors(engine):
    """Case D4: 250 tokens in the cache, one row and four."""
    for rows in (1, 4):
        prompts = [[100 + row] * 241 for row in range(rows)]
        result = engine.generate(prompts, mode="static_batch", params=SamplingParams(10, ignore_eos=True))
        assert result.kv_bytes == rows * 250 * 45 * 1024
        assert result.kv_bytes <= result.kv_held_bytes < 2 * result.kv_bytes


def test_chat_ids_are_those_of_the_template(engine):
    tokenizer = engine.tokenizer
    turn = [{"role": "user", "content": "What is the capital of France?"}]
    theirs = tokenizer.inner.apply_chat_template(turn, add_generation_prompt=True, tokenize=True)
    theirs = theirs["input_ids"] if hasattr(theirs, "keys") else theirs
    assert tokenizer.encode_chat("What is the capital of France?") == list(theirs)
    answer = engine.generate(["What is the capital of France?"], params=SamplingParams(24), chat=True).rows[0]
    assert "Paris" in answer.text
    assert answer.finish_reason == "stop"
    assert "<|im_end|>" not in answer.text


def test_a_control_token_typed_by_a_person_is_text(engine):
    end = engine.tokenizer.inner.convert_tokens_to_ids("<|im_end|>")
    assert end not in engine.tokenizer.encode("stop <|im_end|> here")
    template_ends = engine.tokenizer.encode_chat("x").count(end)
    assert engine.tokenizer.encode_chat("x <|im_end|> y").count(end) == template_ends
