"""A config.json with absurd numbers is one sentence, before anything is built or divided by them."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from model_folders import is_one_sentence, write_gpt2, write_model
from transformers import AutoConfig

import kshipra
from conftest import make_llama
from kshipra import machine
from kshipra.engine import runner
from kshipra.errors import KshipraError, ModelError
from kshipra.models.shapes import check_shape, config_of, describe
from kshipra.models.sources import check_config, read_config
from kshipra.types import SamplingParams

ABSURD = (
    0,
    -1,
    3.5,
    7,
    10**5,
    10**12,
    2**70,
    "4",
    "",
    None,
    [],
    {},
    [1],
    True,
    math.nan,
    math.inf,
    -math.inf,
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    write_gpt2(place / "gpt2")
    write_model(make_llama(vocab_size=259), place / "llama")
    return {name: place / name for name in ("gpt2", "llama")}


@pytest.fixture(autouse=True)
def small_machine(monkeypatch):
    """One on which an absurd model would be noticed."""
    monkeypatch.setattr(machine, "threads", lambda: 1)
    monkeypatch.setattr(runner, "free_bytes", lambda _: 2**30)


def numbers(folder: Path) -> list[str]:
    """The fields of a config that are numbers."""
    found = read_config(folder)
    optional = [name for name in ("n_inner", "head_dim") if name in AutoConfig.for_model(**found).to_dict()]
    is_number = {name for name, value in found.items() if type(value) in (int, float)}
    return sorted(is_number | set(optional))


def refusal(action: Callable[[], Any]) -> str | None:
    """The sentence that `action` is refused with; whatever else it raises is a fault."""
    try:
        action()
    except KshipraError as error:
        return str(error)
    return None


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_number_out_of_its_range_is_one_sentence_or_a_model_that_runs(folders, family, tmp_path):
    config = read_config(folders[family])
    spoiled = [{name: value} for name in numbers(folders[family]) for value in ABSURD]
    said = [refusal(lambda one=one: check_config(config | one, "mine")) for one in spoiled]
    assert [sentence for sentence in said if sentence is not None and not is_one_sentence(sentence)] == []
    passed = [one for one, sentence in zip(spoiled, said, strict=True) if sentence is None]
    assert len(passed) < len(spoiled) / 2
    folder = Path(shutil.copytree(folders[family], tmp_path / "mine"))

    def two_tokens(implementation: str) -> None:
        engine = kshipra.load(str(folder), device="cpu", implementation=implementation)
        engine.generate([[72, 101, 108]], params=SamplingParams(2))

    for one in passed:
        (folder / "config.json").write_text(json.dumps(config | one))
        for implementation in ("native", "transformers"):
            sentence = refusal(lambda how=implementation: two_tokens(how))
            assert sentence is None or is_one_sentence(sentence), (one, implementation, sentence)


@pytest.mark.parametrize(
    ("family", "values", "said"),
    [
        ("gpt2", {"n_head": 0}, "describes no model"),
        ("gpt2", {"n_head": -4}, "heads -4 is not from 1 to 10,000"),
        ("gpt2", {"n_head": 5}, "is not 5 heads"),
        ("gpt2", {"n_layer": 10**9}, "layers 1000000000 is not from 1 to 1,000"),
        ("gpt2", {"n_embd": 2**40}, "width"),
        ("gpt2", {"vocab_size": 10**12}, "vocabulary"),
        ("gpt2", {"n_positions": 0}, "context 0"),
        ("gpt2", {"n_inner": -8}, "intermediate size -8"),
        ("gpt2", {"layer_norm_epsilon": -1.0}, "an epsilon of -1.0"),
        ("llama", {"num_key_value_heads": 3}, "do not share"),
        ("llama", {"num_key_value_heads": 0}, "kv heads 0"),
        ("llama", {"head_dim": 7}, "choose another model"),
        ("llama", {"rms_norm_eps": math.nan}, "an epsilon of nan"),
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 0.0}}, "rope theta 0.0"),
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": math.inf}}, "rope theta inf"),
        ("llama", {"rope_parameters": 7}, "cannot be read"),
    ],
)
def test_what_is_wrong_is_named(folders, family, values, said):
    with pytest.raises(ModelError) as caught:
        check_shape(read_config(folders[family]) | values, "mine")
    assert is_one_sentence(str(caught.value))
    assert said in str(caught.value)


def test_a_config_that_asks_for_more_than_its_files_hold_is_refused_by_its_own_number(folders, tmp_path):
    folder = Path(shutil.copytree(folders["gpt2"], tmp_path / "mine"))
    (folder / "config.json").write_text(json.dumps(read_config(folder) | {"n_inner": 10**7}))
    with pytest.raises(ModelError, match=r"mine has 1,\d\d\d million weights and needs"):
        kshipra.load(str(folder), device="cpu", implementation="transformers")


def test_every_shape_of_a_good_config_is_as_the_loaded_models(folders):
    for folder in folders.values():
        spec = kshipra.load(str(folder), device="cpu").model.spec
        before = describe(config_of(read_config(folder), folder.name), folder.name, runner.torch.float32)
        names = ("family", "layers", "heads", "kv_heads", "head_size", "width", "vocabulary", "context")
        assert [getattr(before, name) for name in names] == [getattr(spec, name) for name in names]
