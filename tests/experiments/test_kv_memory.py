"""`kv-memory` in miniature, and what its report says of numbers that are known."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest
import torch

from conftest import byte_level_tokenizer, make_gpt2, make_llama
from kshipra import machine
from kshipra.costs import kv_bytes_per_token
from kshipra.engine.cache import GROWTH_COLUMNS, KVCache
from kshipra.engine.runner import Engine
from kshipra.errors import InputError
from kshipra.experiments import experiment_named
from kshipra.experiments import run as running
from kshipra.experiments.measure import kv_memory as measuring
from kshipra.experiments.report import kv_words as words
from kshipra.experiments.report import report_of
from kshipra.experiments.report.parts import Table
from kshipra.experiments.results import from_document, read
from kshipra.experiments.rig import Rig
from kshipra.types import ModelChoice
from kshipra.ui.show import count, size

KV_MEMORY = experiment_named("kv-memory")


def small_rig(monkeypatch, model) -> Rig:
    tiny = Engine(model.float(), byte_level_tokenizer())
    monkeypatch.setattr("kshipra.experiments.rig.load_or_random", lambda choice, progress: (tiny, "random"))
    monkeypatch.setattr(running, "in_own_process", lambda experiment, rig, case: measuring.measure(rig, case))
    return Rig(ModelChoice("tiny", device="cpu"), quick=True)


def told(*_) -> None:
    pass


@pytest.fixture(params=[make_gpt2, make_llama], ids=["gpt2", "llama"])
def rig(request, monkeypatch) -> Rig:
    return small_rig(monkeypatch, request.param())


@pytest.fixture
def results(rig, tmp_path):
    return running.run(KV_MEMORY, rig, tmp_path, progress=told)


def test_a_miniature_run_and_its_report(rig, results, tmp_path):
    per_token = kv_bytes_per_token(rig.spec)
    lines = words.context_lines(results)
    assert lines["columns"][-1] == 256
    for end, used, held in zip(lines["columns"], lines["used_bytes"], lines["held_bytes"], strict=True):
        assert set(used) == {per_token * end}
        assert set(held) == {per_token * -(-end // GROWTH_COLUMNS) * GROWTH_COLUMNS}
    found = report_of(read(tmp_path / "results.json"))
    assert f"{count(per_token)} bytes) by the formula" in found.answers[0]
    assert "to the byte at all 8 contexts" in found.answers[0]
    shown = next(part for part in found.parts if isinstance(part, Table) and part.key == "kv-overtakes")
    weights = results.of(weights="native")[0].samples["weights_bytes"]
    assert weights == rig.spec.stored_bytes
    assert shown.rows[0][3] == count(weights // per_token + 1)
    full = results.of(kind="rows")
    assert full[-1].samples["stored"]["used_bytes"] > weights  # the last is the first that overtakes
    assert all(case.samples["stored"]["used_bytes"] <= weights for case in full[:-1])


def test_growth_is_seen_in_the_engines_own_passes(results):
    samples = results.of(kind="growth")[0].samples
    assert words.growth_columns(samples) == [GROWTH_COLUMNS, GROWTH_COLUMNS]
    assert samples["used_bytes"] == [end * samples["kv_bytes_per_token"] for end in samples["columns"]]


def test_masks_are_the_ones_that_the_model_is_given(results, rig):
    samples = results.of(kind="masks")[0].samples
    assert [mask["bytes"] for mask in samples["dense"]] == [0, 0]
    assert [mask["shape"] for mask in samples["padded"]] == [[2, 1, 32, 32], [2, 1, 1, 33]]
    assert samples["padded"][0]["bytes"] == 2 * 32 * 32  # a byte a bool
    assert samples["stored_bytes"] == rig.spec.layers * 256 * 256 * 4
    assert samples["full_prefill_bytes"] == 256 * 256


def test_what_malloc_hands_out_is_seen():
    def in_use(books) -> int:
        return books["uordblks"] + books["hblkhd"]

    before = machine.malloc_books()
    if before is None:
        pytest.skip("This system's malloc does not tell.")
    block = torch.ones(40 * 2**20, dtype=torch.uint8)
    assert in_use(machine.malloc_books()) - in_use(before) == pytest.approx(block.nbytes, rel=0.01)


def test_a_cache_that_holds_twice_is_seen(monkeypatch, tmp_path):
    """A fault planted in what is measured: every tensor is kept once more."""

    class Double(KVCache):
        @property
        def used_bytes(self) -> int:
            return 2 * super().used_bytes

    monkeypatch.setattr(measuring, "KVCache", Double)
    found = report_of(running.run(KV_MEMORY, small_rig(monkeypatch, make_gpt2()), tmp_path, progress=told))
    assert "agree but for" in found.answers[0]


def test_rows_that_do_not_fit_are_left_out_with_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(measuring, "free_bytes", lambda device: 100_000)
    results = running.run(KV_MEMORY, small_rig(monkeypatch, make_gpt2()), tmp_path, progress=told)
    skipped = [case.samples["skipped"] for case in results.of(kind="rows")]
    assert all("are free" in sentence for sentence in skipped)
    assert results.of(kind="masks")[0].samples["stored_masks"] == 1  # and the sum is for all
    found = report_of(results)
    masks = next(part for part in found.parts if part.key == "kv-masks")
    assert masks.rows[0][2] == size(2 * 256 * 256 * 4)
    assert "1 were made" in masks.caption


# The report of numbers that are known


@pytest.fixture
def document(results, tmp_path):
    return json.loads((tmp_path / "results.json").read_text())


def samples_in(document, kind):
    return next(case["samples"] for case in document["cases"] if case["settings"]["kind"] == kind)


def test_the_offset_of_a_first_pass_is_told(document):
    passes = samples_in(document, "passes")["passes"]
    for number, passed in enumerate(passes):
        passed["before"]["allocated_bytes"] = 1000
        beyond = 8_519_688 if number == 0 else 512
        passed["with_cache"]["allocated_bytes"] = 1000 + passed["held_bytes"] + beyond
    results = from_document(document)
    assert words.offsets(results) == [8_519_688, 512, 512, 512]
    assert "(8,519,688 bytes)" in words.offset(results)
    assert "has to be taken after a first pass" in words.offset(results)
    passes[0]["with_cache"]["allocated_bytes"] = 1000 + passes[0]["held_bytes"] + 600
    assert "before the first pass would do" in words.offset(from_document(document))


@pytest.mark.parametrize(("beyond", "verdict"), [(0, "the growth of the tensors"), (2**23, "not the growth")])
def test_what_lies_beyond_the_formula_is_named(document, beyond, verdict):
    for repeat in samples_in(document, "context")["repeats"]:
        for stored in repeat["stored"]:
            stored["allocated_bytes"] = repeat["before"]["allocated_bytes"] + stored["held_bytes"] + beyond
    found = words.allocated(words.context_lines(from_document(document)))
    assert f"here it is {verdict}" in found
    assert f"blocks take {size(beyond)} to {size(beyond)} more than the tensors" in found


def test_a_machine_whose_malloc_does_not_tell_is_reported(document):
    document = copy.deepcopy(document)
    for passed in samples_in(document, "passes")["passes"]:
        for when in ("before", "with_cache", "after"):
            passed[when]["allocated_bytes"] = None
    for repeat in samples_in(document, "context")["repeats"]:
        for seen in (repeat["before"], *repeat["stored"]):
            seen["allocated_bytes"] = None
    found = report_of(from_document(document))
    assert any("does not tell" in answer for answer in found.answers)


def test_a_gpu_run_is_reported(document):
    for repeat in samples_in(document, "context")["repeats"]:
        for seen in (repeat["before"], *repeat["stored"]):
            seen["reserved_bytes"] = seen.pop("resident_bytes") + 2**22
    found = report_of(from_document(document))
    assert any("what is reserved is" in answer for answer in found.answers)


def test_the_cache_overtakes_the_weights_at_the_first_token_beyond_them():
    assert words.overtakes_at(497_759_232, 73_728) == 6752  # GPT-2 small in fp32: the study's 6,750
    assert words.overtakes_at(100, 10) == 11


def test_an_unfinished_run_is_reported(results):
    for number in range(1, len(results.cases)):
        assert report_of(replace(results, cases=results.cases[:number], finished=False)).answers
    with pytest.raises(InputError):
        report_of(replace(results, cases=()))
