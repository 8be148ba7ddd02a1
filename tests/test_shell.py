"""The shell: results on stdout, strict JSON, and for a person's mistake status 2 and one sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import byte_level_tokenizer, make_gpt2
from fakes import FakeModel
from kshipra import machine
from kshipra.__main__ import main
from kshipra.bench import synthetic_requests
from kshipra.engine.runner import Engine, load
from kshipra.models import catalogue
from kshipra.modes import MODES
from kshipra.types import SamplingParams


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    """A tiny GPT-2 and its tokenizer, as `save_pretrained` writes them."""
    path = tmp_path_factory.mktemp("models") / "tiny"
    make_gpt2().float().save_pretrained(path)
    byte_level_tokenizer().save_pretrained(path)
    return str(path)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch) -> None:
    """Loading takes all cores, of which tiny models make nothing."""
    monkeypatch.setattr(machine, "threads", lambda: 1)


def said(capsys, *arguments: str) -> str:
    """What a good command writes to stdout."""
    assert main(arguments) == 0
    return capsys.readouterr().out


def not_finite(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def strict(text: str) -> dict:
    return json.loads(text, parse_constant=not_finite)


def refused(capsys, *arguments: str) -> str:
    """The sentence on stderr of a command that ends with status 2."""
    try:
        status = main(arguments)
    except SystemExit as exit:
        status = exit.code
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1, err
    return err


# generate


def test_generate_writes_every_prompt_with_its_text(capsys, folder):
    engine = load(folder)
    expected = engine.generate(["Hello", "é"], params=SamplingParams(6))
    out = said(capsys, "generate", "Hello", "é", "--model", folder, "--max-new-tokens", "6")
    assert f"[1] Hello{expected.rows[0].text}\n" in out
    assert f"[2] é{expected.rows[1].text}\n" in out
    assert out.count("(6 tokens, length)") == 2


@pytest.mark.parametrize("mode", [mode.name for mode in MODES])
def test_generate_json_is_one_strict_object_in_every_mode(capsys, folder, mode):
    out = said(
        capsys,
        "generate",
        "Hello",
        "Yes",
        "--model",
        folder,
        "--max-new-tokens",
        "5",
        "--mode",
        mode,
        "--json",
    )
    assert len(out.splitlines()) == 1
    result = strict(out)
    expected = load(folder).generate(["Hello", "Yes"], mode="no_cache", params=SamplingParams(5))
    assert [tuple(row["token_ids"]) for row in result["rows"]] == [row.token_ids for row in expected.rows]
    assert [row["text"] for row in result["rows"]] == [row.text for row in expected.rows]
    assert (result["mode"], result["new_tokens"], len(result["steps"])) == (
        mode,
        10,
        result["forward_passes"],
    )


def test_generate_of_no_tokens_writes_null_for_what_is_unknown(capsys, folder):
    result = strict(said(capsys, "generate", "Hello", "--model", folder, "--max-new-tokens", "0", "--json"))
    assert (result["new_tokens"], result["ttft_s"], result["end_to_end_tok_per_s"]) == (0, None, None)
    assert "nothing" not in said(capsys, "generate", "Hello", "--model", folder, "--max-new-tokens", "0")


def test_every_option_reaches_the_engine(capsys, folder):
    options = [
        "--temperature",
        "9",
        "--top-k",
        "50",
        "--top-p",
        "0.9",
        "--repetition-penalty",
        "1.2",
        "--seed",
        "7",
    ]
    params = SamplingParams(
        8, temperature=9.0, top_k=50, top_p=0.9, repetition_penalty=1.2, seed=7, stop=("never", "ever")
    )
    stops = ["--stop", "never", "--stop", "ever"]
    out = said(
        capsys,
        "generate",
        "Hi",
        "--model",
        folder,
        "--max-new-tokens",
        "8",
        *options,
        *stops,
        "--chat",
        "--json",
    )
    row = strict(out)["rows"][0]
    expected = load(folder).generate(["Hi"], params=params, chat=True).rows[0]
    assert tuple(row["token_ids"]) == expected.token_ids
    assert (row["seed"], row["prompt_tokens"]) == (7, expected.prompt_tokens)
    cut = said(capsys, "generate", "Hi", "--model", folder, "--max-new-tokens", "8", *options, "--chat")
    assert "seed 7" in cut


def test_a_drawn_seed_is_shown_and_repeats_the_text(capsys, folder):
    start = ["generate", "Hi", "--model", folder, "--max-new-tokens", "8", "--temperature", "20", "--json"]
    first = strict(said(capsys, *start))["rows"][0]
    again = strict(said(capsys, *start, "--seed", str(first["seed"])))["rows"][0]
    assert again["token_ids"] == first["token_ids"]


def test_half_a_character_and_nul_from_the_command_line_are_replaced(capsys, folder):
    row = strict(said(capsys, "generate", "a\udcffb", "--model", folder, "--max-new-tokens", "1", "--json"))[
        "rows"
    ][0]
    assert row["prompt_tokens"] == 1 + 3 + 1


# bench

BENCH = ("--rows", "2", "--prompt-tokens", "9", "--new-tokens", "6", "--repeats", "2")
FIGURES = ("decode_tok_per_s", "end_to_end_tok_per_s", "ttft_s", "peak_extra_bytes", "kv_bytes")


def test_bench_ends_with_one_strict_object(capsys, folder):
    out = said(capsys, "bench", "--model", folder, *BENCH, "--json", "-")
    report = strict(out.splitlines()[-1])
    assert report["identical_ids"] is True
    assert report["mode"] == MODES[-1].name  # the last one's figures are also at the top
    assert [one["mode"] for one in report["modes"]] == [mode.name for mode in MODES]
    for one in (report, *report["modes"]):
        assert one["repeats"] == 2
        for name in FIGURES:
            spread = one["spread"][name]
            assert spread["min"] <= spread["median"] == one[name] <= spread["max"]
            assert one[name] >= 0
        assert one["decode_tok_per_s"] > 0
        assert one["new_tokens"] == 12
    passes = {one["mode"]: one["forward_passes"] for one in report["modes"]}
    assert passes.pop("speculative") <= 12  # by as many as guesses came true
    assert passes == {"no_cache": 12, "kv_cache": 12, "static_batch": 6, "continuous": 7}
    kv_bytes = {one["mode"]: one["kv_bytes"] for one in report["modes"] if one["mode"] != "speculative"}
    assert kv_bytes == {
        "no_cache": 0,
        "kv_cache": 512 * 14,
        "static_batch": 512 * 14 * 2,
        "continuous": 512 * 14 * 2,
    }  # 2 x 2 x 32 x 4 a token
    assert (report["settings"]["rows"], report["settings"]["model"]) == (2, folder)
    assert report["model"]["family"] == "gpt2"
    assert report["threads"] >= 1
    for mode in MODES:
        assert mode.name in out


def test_bench_of_one_mode_has_its_figures_at_the_top(capsys, folder, tmp_path):
    out = said(capsys, "bench", "--model", folder, "--mode", "kv_cache", *BENCH, "--json", "-")
    report = strict(out.splitlines()[-1])
    assert report["mode"] == "kv_cache"
    assert [one["mode"] for one in report["modes"]] == ["kv_cache"]
    assert all(isinstance(report[name], (int, float)) for name in FIGURES)
    file = tmp_path / "report.json"
    out = said(capsys, "bench", "--model", folder, "--mode", "no_cache,kv_cache", *BENCH, "--json", str(file))
    assert [one["mode"] for one in strict(file.read_text())["modes"]] == ["no_cache", "kv_cache"]
    assert "{" not in out


def test_bench_of_one_token_has_no_decode_rate(capsys, folder):
    settings = ("--rows", "1", "--prompt-tokens", "3", "--new-tokens", "1", "--repeats", "1")
    report = strict(said(capsys, "bench", "--model", folder, *settings, "--json", "-").splitlines()[-1])
    assert report["decode_tok_per_s"] is None
    assert report["end_to_end_tok_per_s"] > 0


def test_bench_prompts_have_their_length_differ_and_are_not_cut_short_by_an_end():
    engine = Engine(FakeModel([5], vocabulary=120), byte_level_tokenizer())
    requests = synthetic_requests(engine, rows=5, prompt_tokens=70, new_tokens=9)
    assert [len(request.prompt_ids) for request in requests] == [70] * 5
    assert len({request.prompt_ids for request in requests}) == 5
    assert all(0 <= id < 120 for request in requests for id in request.prompt_ids)
    assert all(request.params == SamplingParams(9, ignore_eos=True) for request in requests)


# models


def test_a_draft_guesses_in_generate_and_in_bench(capsys, folder):
    drafted = ("--model", folder, "--draft", folder)
    out = said(capsys, "generate", "Hello", "--mode", "draft_model", *drafted, "--json")
    result = strict(out)
    assert result["accepted_tokens"] == result["drafted_tokens"] > 0
    assert result["rows"][0]["accepted_tokens"] == result["accepted_tokens"]
    assert main(["generate", "Hello", "--mode", "draft_model", *drafted]) == 0
    assert f"100% of {result['drafted_tokens']} guesses" in capsys.readouterr().err
    asked = ("--mode", "kv_cache,draft_model", "--check", "--json", "-")
    report = strict(said(capsys, "bench", *drafted, *BENCH, *asked).splitlines()[-1])
    assert report["identical_ids"]
    assert report["modes"][1]["forward_passes"] < report["modes"][0]["forward_passes"]
    assert [one["verdict"] for one in report["check"]] == ["identical"] * 2


def test_models_lists_the_catalogue(capsys):
    out = said(capsys, "models")
    for entry in catalogue.ENTRIES:
        assert entry.name in out
        assert entry.licence in out


# Mistakes

GENERATE = ("generate", "Hello", "--model")
TINY = "TINY"  # stands for the folder


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*GENERATE, TINY, "--mode", "nonsense"), ("nonsense", "no_cache, kv_cache")),
        ((*GENERATE, TINY, "--max-new-tokens", "-1"), ("max_new_tokens", "from 0")),
        ((*GENERATE, TINY, "--max-new-tokens", "many"), ("--max-new-tokens", "many")),
        ((*GENERATE, TINY, "--max-new-tokens", "1.5"), ("--max-new-tokens",)),
        ((*GENERATE, TINY, "--max-new-tokens", "10000000"), ("max_new_tokens",)),
        ((*GENERATE, TINY, "--temperature", "-1"), ("temperature", "from 0 to 100")),
        ((*GENERATE, TINY, "--temperature", "nan"), ("temperature", "nan")),
        ((*GENERATE, TINY, "--temperature", "warm"), ("--temperature", "warm")),
        ((*GENERATE, TINY, "--top-p", "1.5"), ("top_p", "from 0 to 1")),
        ((*GENERATE, TINY, "--top-k", "-1"), ("top_k", "at least 0")),
        ((*GENERATE, TINY, "--seed", "-1"), ("seed",)),
        ((*GENERATE, TINY, "--stop", ""), ("stop", "one character")),
        ((*GENERATE, TINY, "--weights", "int4"), ("weights", "native", "int8", "int4")),
        ((*GENERATE, TINY, "--execution", "graphs"), ("execution", "eager, compiled")),
        ((*GENERATE, TINY, "--dtype", "float8"), ("float8", "float32, bfloat16")),
        ((*GENERATE, TINY, "--device", "tpu"), ("tpu", "cpu")),
        ((*GENERATE, TINY, "--device", "cpu:9x"), ("cpu:9x",)),
        ((*GENERATE, TINY, "--implementation", "magic"), ("magic", "auto, native, transformers")),
        ((*GENERATE, TINY, "--mode", "draft_model"), ("second, smaller model", "--draft NAME")),
        ((*GENERATE, TINY, "--draft", TINY), ("--draft", "--mode draft_model")),
        ((*GENERATE, TINY, "--mode", "draft_model", "--draft", "./missing"), ("./missing",)),
        (("bench", "--model", TINY, "--mode", "kv_cache,draft_model"), ("--draft NAME",)),
        (("bench", "--model", TINY, "--mode", "kv_cache", "--draft", TINY), ("--mode draft_model",)),
        ((*GENERATE, TINY, "--wrong"), ("--wrong",)),
        ((*GENERATE, "/no/such/folder"), ("/no/such/folder",)),
        ((*GENERATE, "./missing"), ("./missing",)),
        ((*GENERATE, "missing.gguf"), ("missing.gguf",)),
        ((*GENERATE, ""), ("model",)),
        ((*GENERATE, "/tmp"), ("tmp",)),
        (("generate", "", "--model", TINY), ("Prompt 1", "empty")),
        (("generate", "Hello", "", "--model", TINY), ("Prompt 2", "empty")),
        (("generate", "--model", TINY), ("PROMPT",)),
        (("generate", "x" * 20_001, "--model", TINY), ("Prompt 1", "20,000")),
        (("generate", "x" * 300, "--model", TINY), ("Prompt 1", "300", "256")),
        (("bench", "--model", TINY, "--rows", "0"), ("--rows", "at least 1")),
        (("bench", "--model", TINY, "--repeats", "0"), ("--repeats", "at least 1")),
        (("bench", "--model", TINY, "--new-tokens", "-5"), ("--new-tokens", "at least 1")),
        (("bench", "--model", TINY, "--prompt-tokens", "0"), ("--prompt-tokens", "at least 1")),
        (("bench", "--model", TINY, "--prompt-tokens", "257"), ("Prompt 1", "257", "256")),
        (("bench", "--model", TINY, "--new-tokens", "10000000"), ("max_new_tokens",)),
        (("bench", "--model", TINY, "--mode", "kv_cache,"), ("Mode ''",)),
        (("bench", "--model", TINY, "--mode", "nonsense"), ("nonsense",)),
        (
            ("bench", "--model", TINY, *BENCH, "--json", "/no/such/folder/report.json"),
            ("/no/such/folder/report.json",),
        ),
        (("models", "--wrong"), ("--wrong",)),
        (("nonsense",), ("nonsense",)),
        ((), ("verb",)),
    ],
    ids=lambda value: " ".join(value)[:70],
)
def test_a_mistake_is_one_sentence_and_status_2(capsys, folder, arguments, words):
    sentence = refused(capsys, *(folder if part == TINY else part for part in arguments))
    assert all(word in sentence for word in words), sentence


def test_a_folder_without_a_model_says_what_is_missing(capsys, folder, tmp_path):
    assert "config.json" in refused(capsys, *GENERATE, str(tmp_path))
    for path in Path(folder).iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    assert "model.safetensors is damaged" in refused(capsys, *GENERATE, str(tmp_path))


def test_the_command_itself_ends_with_status_2():
    """Once through the operating system, where a traceback would show."""
    command = [sys.executable, "-m", "kshipra", "generate", "Hello", "--mode", "nonsense"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=dict(os.environ))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("kshipra: Mode 'nonsense' is not one of")
