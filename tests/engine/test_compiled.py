"""Compiled decode steps: the tokens and logits of the model's own forward, whatever the rows, pads, capacity,
threads and shapes; and what happens where there is no compiler."""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil
import pytest
import torch

from conftest import FAMILIES, Letters, make_gpt2, make_llama
from kshipra.engine import decode
from kshipra.engine.cache import KVCache
from kshipra.engine.check import tolerance
from kshipra.engine.compiled import WIDE_ROWS, CompiledModel, Wide, _matrix, unavailable
from kshipra.engine.geometry import attention_mask, positions
from kshipra.engine.layout import FAULTS
from kshipra.engine.runner import Engine
from kshipra.errors import InputError
from kshipra.models.base import Linear
from kshipra.models.loading import wrap_model
from kshipra.modes import MODES
from kshipra.types import SamplingParams

PROMPTS = [[7, 3, 9], list(range(20, 37)), [(31 * i) % 900 for i in range(90)], [5]]


def native(reference, weights: str = "native"):
    """Our fp32 model of a tiny transformers one, a copy of its own."""
    return wrap_model(reference.float(), "native", weights)


def both(reference) -> tuple[Engine, Engine]:
    """An eager and a compiled engine of the same weights."""
    return Engine(native(reference), Letters()), Engine(CompiledModel(native(reference)), Letters())


def ids(engine: Engine, mode: str, new_tokens: int) -> list[tuple[int, ...]]:
    result = engine.generate(PROMPTS, mode=mode, params=SamplingParams(new_tokens, ignore_eos=True))
    return [row.token_ids for row in result.rows]


def last_logits(model, rows: int = 3, stored: int = 126) -> list[torch.Tensor]:
    """Logits (B, V) of four decode steps onto `stored` columns of left-padded rows; 128 is a capacity's
    edge."""
    generator = torch.Generator().manual_seed(3)
    vocabulary = model.spec.vocabulary
    text = torch.randint(0, vocabulary, (rows, stored + 4), generator=generator)
    valid = torch.arange(stored + 4)[None] >= torch.arange(rows)[:, None] * 5  # pads: 0, 5, 10, ...
    cache, start, found = KVCache(), 0, []
    with torch.inference_mode():
        for end in range(stored, stored + 5):
            seen, columns = valid[:, :end], end - start
            mask = attention_mask(seen, columns) if rows > 1 else None
            found.append(model.forward(text[:, start:end], positions(seen, columns), mask, cache, 1)[:, -1])
            cache.advance(columns)
            start = end
    return found[1:]


@pytest.mark.parametrize("family", list(FAMILIES))
@pytest.mark.parametrize("mode", [mode.name for mode in MODES])
def test_compiled_gives_the_ids_of_eager(family, mode):
    eager, compiled = both(FAMILIES[family]())
    assert ids(compiled, mode, 60) == ids(eager, mode, 60)  # 90 + 60 columns: the cache grows on the way


@pytest.mark.parametrize(
    "reference",
    [
        make_gpt2(),
        make_llama(),
        make_gpt2(n_embd=36, n_head=3, vocab_size=131, n_inner=50),
        make_llama(hidden_size=36, num_attention_heads=6, num_key_value_heads=2, vocab_size=131),
        make_llama(hidden_size=64, intermediate_size=192, num_key_value_heads=1, head_dim=40),
    ],
    ids=["gpt2", "llama", "gpt2-odd", "llama-odd", "llama-wide"],
)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7])
def test_logits_are_those_of_the_model(reference, rows):
    """Rows in groups and alone, widths that fill no register, and both sides of a full cache."""
    for stored in (5, 126):
        own = last_logits(native(reference), rows, stored)
        for ours, theirs in zip(
            last_logits(CompiledModel(native(reference)), rows, stored), own, strict=True
        ):
            torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=2e-4)


def stored_alike(reference, weights: str):
    """An eager fp32 model whose values are those that `weights` keeps: what a compiled step over the stored
    ones has to give, but for the last bits."""
    stored, model = native(reference, weights), native(reference)
    kept = dict(stored.named_modules())
    for name, module in model.named_modules():
        if hasattr(kept[name], "scale") or kept[name].__class__.__name__.startswith("Bfloat16"):
            rows = kept[name].weight.float() * getattr(kept[name], "scale", torch.ones(1))[:, None]
            module.weight.data = rows.t().contiguous() if isinstance(module, Linear) else rows
    return model


@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
@pytest.mark.parametrize(
    "reference",
    [
        make_gpt2(),
        make_gpt2(n_embd=36, n_head=3, vocab_size=131, n_inner=50),
        make_llama(hidden_size=192, intermediate_size=128, head_dim=40),
        make_llama(hidden_size=64, tie_word_embeddings=True),
    ],
    ids=["gpt2", "gpt2-odd", "llama-wide", "llama-tied"],
)
@pytest.mark.parametrize("rows", [1, 3, 4, 6, 21])
def test_stored_weights_are_read_as_what_they_stand_for(reference, weights, rows):
    """Few rows and many take different instructions; both round inputs to 16 bits at most."""
    expected = last_logits(stored_alike(reference, weights), rows)
    model = CompiledModel(native(reference, weights))
    model._columns = stored_alike(reference, weights).forward  # the same prefill: only steps differ
    for ours, theirs in zip(last_logits(model, rows), expected, strict=True):
        assert (ours - theirs).abs().max() <= 3 * tolerance(theirs)  # seen: 4e-4, once 1.2e-3 of their scale


@pytest.mark.parametrize("reference", [make_gpt2(), make_llama()], ids=["gpt2", "llama"])
def test_prompts_of_bfloat16_weights_are_rounded_as_often_as_by_the_model(reference):
    """What goes into products and comes out of them is bfloat16; what lies between, float32 in both."""
    exact = last_logits(stored_alike(reference, "bfloat16"))
    eager, compiled = native(reference, "bfloat16"), CompiledModel(native(reference, "bfloat16"))
    worst = []
    for model in (eager, compiled):
        worst.append(max((a - b).abs().max().item() for a, b in zip(last_logits(model), exact, strict=True)))
    assert worst[1] < 2 * worst[0]


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_threads_share_the_work_whatever_their_number(threads, monkeypatch):
    model = CompiledModel(native(make_llama()))
    alone = last_logits(model)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    for ours, theirs in zip(last_logits(model), alone, strict=True):
        assert torch.equal(ours, theirs)  # who computes an output does not change it


def as_bfloat16(reference):
    for weight in reference.parameters():
        weight.data = weight.data.bfloat16().to(weight.dtype)
    return reference


@pytest.mark.parametrize(
    "made", [lambda: make_gpt2(n_positions=640), lambda: make_llama(max_position_embeddings=640)]
)
@pytest.mark.parametrize("columns", [WIDE_ROWS - 1, WIDE_ROWS, 600])
def test_a_prompt_is_read_as_exactly_by_the_matrix_unit(made, columns):
    """Weights that are bfloat16 in truth may be multiplied in parts, which shows in nothing but time."""
    reference = as_bfloat16(made())
    ids = torch.arange(columns)[None] * 31 % reference.config.vocab_size
    exact = reference.double()(ids).logits[0, -1]
    for model in (native(reference), CompiledModel(native(reference))):
        with torch.inference_mode():
            seen = torch.ones_like(ids, dtype=torch.bool)
            logits = model.forward(ids, positions(seen, columns), None, KVCache(), 1)[0, -1]
        assert (logits.double() - exact).abs().max() < 2e-6 * exact.abs().max()


@pytest.mark.parametrize("rows", [1, 31, 32, 33, 513])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_products_of_many_rows(rows, threads, monkeypatch):
    """Of 1 to 17 tiles of rows, and outputs that threads cannot share evenly, with a bias and without."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    code, _ = decode.library()
    generator = torch.Generator().manual_seed(2)
    for inputs, outputs, bias in ((64, 32, True), (160, 416, False)):
        module = torch.nn.Linear(inputs, outputs, bias=bias)
        module.weight.data = torch.randn(outputs, inputs, generator=generator).bfloat16().float()
        x = torch.randn(2, rows, inputs, generator=generator)
        exact = torch.nn.functional.linear(*(t.double() for t in (x, module.weight)))
        exact = exact + module.bias.double() if bias else exact
        matrix = _matrix(module)
        made = Wide(module, matrix, code) if code.kshipra_is_wide(matrix) else module
        with torch.inference_mode():
            assert (made(x).double() - exact).abs().max() < 1e-6 * exact.abs().max()


def test_only_weights_that_are_bfloat16_in_truth_are_multiplied_in_parts():
    code, _ = decode.library()
    module = torch.nn.Linear(64, 32)
    module.weight.data = module.weight.data.bfloat16().float()
    can = code.kshipra_is_wide(_matrix(module))
    assert can == ("amx_bf16" in Path("/proc/cpuinfo").read_text())
    module.weight.data[31, 63] += 1e-6
    assert not code.kshipra_is_wide(_matrix(module))
    narrow = torch.nn.Linear(48, 32)
    narrow.weight.data.zero_()
    assert not code.kshipra_is_wide(_matrix(narrow))


def test_kept_logits_survive_the_next_step():
    model = CompiledModel(native(make_gpt2()))
    kept = last_logits(model)
    copies = [logits.clone() for logits in kept]
    last_logits(model)
    assert all(map(torch.equal, kept, copies))


@pytest.mark.parametrize("fault", list(FAULTS))
def test_a_planted_fault_is_the_same_fault_when_compiled(fault):
    """The bug lab's positions, masks and caches reach the compiled step as they reach the model."""
    eager, compiled = both(make_gpt2())
    requests = eager.requests(PROMPTS, SamplingParams(12, ignore_eos=True))
    for mode in ("kv_cache", "static_batch"):
        runs = (list(engine.run(requests, mode=mode, layout=FAULTS[fault])) for engine in (eager, compiled))
        first, second = ([token.id for event in run for token in event.new_tokens] for run in runs)
        assert first == second


CODE_FAULTS = {
    "a position too far": ("float>(step.positions[row])", "float>(step.positions[row] + 1)"),
    "pads looked at": ("visible[c] ? scores[c] : HIDDEN", "scores[c]"),
    "key kept unrotated": ("std::copy(key, key + size,", "std::copy(qkv, qkv + size,"),
    "new column not seen": ("columns = step.stored + 1;", "columns = step.stored;"),
    "stored one column late": ("keys + step.stored * size", "keys + (step.stored - 1) * size"),
    "another group's keys": ("(row * model.kv_heads + group) * step", "row * model.kv_heads * step"),
    "residual lost": ("product(layer.mlp_out, own.input, from(width), to(width), step.x, true)",
                      "product(layer.mlp_out, own.input, from(width), to(width), step.x, false)"),
    "scale left out": ("(scores[c] - largest) * scale", "scores[c] - largest"),
    "angle of the other half": ("second * cos[i] + first", "second * cos[i] - first"),
    "a prompt's column sees the next": ("pass.stored + column + 1;", "pass.stored + column + 2;"),
    "a prompt's keys kept unrotated": ("    turned(model.heads + group, pass.keys",
                                       "    std::copy_n(qkv + (model.heads + group) * size, size, pass.keys"),
    "a prompt's keys of another group": ("pass.keys + group * pass", "pass.keys + 0 * pass"),
    "a prompt's shares left from before": ("std::fill(shares + visible[q], shares + columns, 0.0f);", ""),
    "a prompt's residual lost": ("own[i] += from[i]", "own[i] += 0"),
    "shares not of their sum": ("*= 1 / totals[q]", "*= 1"),
    "shares not of their sum behind the last register": ("sum / totals[q]", "sum"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault", list(CODE_FAULTS))
def test_faults_planted_in_the_code_are_seen(fault, monkeypatch, tmp_path):
    right, wrong = CODE_FAULTS[fault]
    planted = shutil.copytree(decode.SOURCES, tmp_path / "planted")
    texts = {path: path.read_text() for path in planted.iterdir()}
    assert sum(text.count(right) for text in texts.values()) == 1
    for path, text in texts.items():
        path.write_text(text.replace(right, wrong))
    monkeypatch.setattr(decode, "SOURCES", planted)
    quick = [option.replace("-O3", "-O1") for option in decode.COMPILE]
    monkeypatch.setattr(decode, "COMPILE", quick)  # a third of the time; the fault is the same
    monkeypatch.setenv("KSHIPRA_CACHE", str(tmp_path))
    reference = make_llama(head_dim=40)
    honest = last_logits(native(reference))
    spoiled = last_logits(CompiledModel(native(reference)))
    close = [(a - b).abs().max() <= 0.01 for a, b in zip(spoiled, honest, strict=True)]
    assert not all(close)  # a fault that reads what nobody wrote may give NaN, close to nothing


def test_the_code_is_compiled_once_and_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("KSHIPRA_CACHE", str(tmp_path))
    said = []
    first = CompiledModel(native(make_gpt2()), progress=lambda *what: said.append(what[0]))
    second = CompiledModel(native(make_llama()), progress=lambda *what: said.append(what[0]))
    assert set(said) == {"Compiling the decode step"}
    assert first.compile_s > 0
    assert second.compile_s == 0
    assert [path.suffix for path in (tmp_path / "compiled").iterdir()] == [".so"]


def test_loading_the_code_leaves_denormal_numbers_on():
    """What links with -ffast-math switches them off for the whole process, and fp32 is no longer the same."""
    CompiledModel(native(make_gpt2()))
    assert (torch.full((64,), 1e-40) * 1).min() > 0


def test_without_a_compiler_the_reason_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(InputError, match=r"this machine has no C\+\+ compiler .*; choose eager"):
        CompiledModel(native(make_gpt2()))


def test_a_compiler_that_refuses_leaves_nothing_behind(monkeypatch, tmp_path):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "step.cpp").write_text("this is no C++")
    monkeypatch.setattr(decode, "SOURCES", tmp_path / "broken")
    monkeypatch.setenv("KSHIPRA_CACHE", str(tmp_path / "cache"))
    with pytest.raises(InputError, match=r"could not make it .*error: .*; choose eager"):
        CompiledModel(native(make_gpt2()))
    assert list((tmp_path / "cache" / "compiled").iterdir()) == []


def test_who_stops_while_the_code_is_compiled_does_not_wait_for_the_compiler(monkeypatch, tmp_path):
    """As a compiler is: a driver that has another program do the work."""
    driver = tmp_path / "c++"
    driver.write_text("#!/bin/sh\n[ $1 = --version ] || { sleep 60; true; }\n")
    driver.chmod(0o755)
    monkeypatch.setenv("CXX", str(driver))
    monkeypatch.setenv("KSHIPRA_CACHE", str(tmp_path / "cache"))
    started: list[psutil.Process] = []

    def progress(*_):
        started.extend(psutil.Process().children(recursive=True))
        if len(started) > 1:
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        decode.library(progress)
    gone = psutil.STATUS_ZOMBIE  # with nobody to bury it
    assert all(not process.is_running() or process.status() == gone for process in started)
    assert list((tmp_path / "cache" / "compiled").iterdir()) == []


def test_what_cannot_be_compiled_is_refused():
    assert unavailable(native(make_gpt2())) is None
    assert "adapter" in unavailable(wrap_model(make_gpt2().float(), "transformers"))
    assert "float64" in unavailable(wrap_model(make_gpt2(), "native"))
