"""From what a person types to an engine, without network: local folders of every kind, good and bad."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from model_folders import (
    NO_MODEL,
    NOT_OURS,
    greedy,
    is_one_sentence,
    write_config,
    write_files,
    write_gpt2,
    write_model,
)
from safetensors.torch import load_file, save_file
from transformers import GenerationConfig, OPTConfig, OPTForCausalLM

import kshipra
from conftest import NO_SPECIAL, loud
from kshipra import machine
from kshipra.engine.runner import Engine
from kshipra.errors import KshipraError, ModelError
from kshipra.models import hub
from kshipra.models.gpt2 import GPT2
from kshipra.models.hf import TransformersModel
from kshipra.models.sources import check_config, locate
from kshipra.types import SamplingParams

PROMPT = [72, 101, 108, 108, 111]
END, IM_START, IM_END = 256, 257, 258  # the control tokens of the byte-level tokenizer
NOTHING = ["", "  \n", "../..x", "../../nothing", "/no/such/folder", "./nothing", "~nobody-here/x", "a b"]
NOTHING += ["x" * 500, "x/" * 250, "org/" + "x" * 5000, "a\0b", "line\nline", "org/a..b", "${7*7}", "{{7*7}}"]
NOTHING += ["no-such.gguf", "no\nsuch.GGUF", "x" * 5000 + ".gguf", "http://elsewhere.net/org/name", "a/b/c"]
TWELVE = SamplingParams(max_new_tokens=12, ignore_eos=True)


def silent(what: str, done: int | None, total: int | None) -> None:
    pass


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """One thread, and a Hub that nobody may ask."""
    monkeypatch.setattr(machine, "threads", lambda: 1)
    monkeypatch.setattr(hub, "HfApi", lambda: pytest.fail("the network was asked"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    return folder, write_gpt2(folder)


@pytest.fixture
def copy(tiny, tmp_path) -> Path:
    """The tiny model in a folder that a test may damage."""
    return Path(shutil.copytree(tiny[0], tmp_path / "mine"))


def load(folder: Path, **choices) -> Engine:
    return kshipra.load(str(folder), device="cpu", **({"dtype": "float32"} | choices))


def first_twelve(engine: Engine) -> tuple[int, ...]:
    return engine.generate([PROMPT], params=TWELVE).rows[0].token_ids


def refused(name: str | Path, **choices) -> str:
    with pytest.raises(ModelError) as caught:
        load(name, **choices)
    message = str(caught.value)
    assert is_one_sentence(message), message
    return message


# What is no model


@pytest.mark.parametrize("name", NOT_OURS)
def test_a_config_that_is_not_ours(tmp_path, name):
    config, words = NOT_OURS[name]
    write_config(tmp_path / "mine", config)
    assert words in refused(tmp_path / "mine")


@pytest.mark.parametrize("name", NO_MODEL)
def test_a_folder_that_is_no_model(tmp_path, name):
    files, words = NO_MODEL[name]
    write_files(tmp_path / "mine", files)
    assert words in refused(tmp_path / "mine")


@pytest.mark.parametrize(
    "name",
    NOTHING,
    ids=lambda name: repr(name[:14]),
)
def test_what_is_no_name_asks_nobody(name):
    message = refused(name)
    assert "49" not in message


@pytest.mark.parametrize(
    "name", ["<img src=x onerror=alert(1)>", "<script>alert(1)</script>.gguf", "[x](javascript:alert(1))"]
)
def test_markup_in_a_name_is_quoted_and_nothing_more(name):
    assert repr(name) in refused(name)


def test_up_from_here_is_a_folder_like_any_other(tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    assert tmp_path.name + " has no config.json" in refused("../..")


def test_a_folder_is_named_for_what_it_is(copy, monkeypatch):
    for name in (f" {copy}/ ", copy):
        source = locate(str(name), progress=silent)
        assert (source.label, source.folder, source.gguf) == ("mine", copy, None)
    monkeypatch.chdir(copy)
    assert locate(".", progress=silent).label == "mine"


@pytest.mark.parametrize("architectures", [5, {}, "GPT2LMHeadModel", [5], [["GPT2LMHeadModel"]]])
def test_architectures_that_are_no_list_of_names(architectures):
    """Refused, or taken for what the kind says; never a fault of ours."""
    with contextlib.suppress(ModelError):
        check_config({"model_type": "gpt2", "architectures": architectures}, "mine")


@pytest.mark.parametrize("text", ["", "{", "[]", '"gpt2"'])
def test_a_damaged_config(copy, text):
    (copy / "config.json").write_text(text)
    assert "config.json of mine cannot be read" in refused(copy)


def garbage(path: Path) -> None:
    path.write_bytes(b"<html>Not found</html>\n" * 100)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def bad_header(path: Path) -> None:
    path.write_bytes((8).to_bytes(8, "little") + b'{"a"\n\n{}' + path.read_bytes()[16:])


@pytest.mark.parametrize("damage", [garbage, cut, empty, bad_header])
def test_damaged_weights(copy, damage):
    damage(copy / "model.safetensors")
    assert "model.safetensors is damaged" in refused(copy)
    assert "mine (gpt2) could not be loaded" in refused(copy, implementation="transformers")


def test_weights_of_another_shape(copy):
    write_gpt2(copy.parent / "wider", n_embd=64)
    shutil.copy(copy.parent / "wider" / "model.safetensors", copy)
    assert "mine: its weights do not fit its config" in refused(copy)
    assert "mine (gpt2) could not be loaded" in refused(copy, implementation="transformers")


def test_weights_with_a_gap(copy):
    tensors = load_file(copy / "model.safetensors")
    del tensors["transformer.h.1.mlp.c_fc.weight"]
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    for implementation in ("native", "transformers"):
        assert "h.1.mlp.c_fc.weight" in refused(copy, implementation=implementation)


SMALL_PARTS = ["tokenizer.json", "tokenizer_config.json", "generation_config.json"]


@pytest.mark.parametrize("text", ["", "{", "[]"])
@pytest.mark.parametrize("name", SMALL_PARTS)
def test_damaged_small_files(copy, name, text):
    (copy / name).write_text(text)
    assert "of mine cannot be read" in refused(copy)


@pytest.mark.parametrize("value", [{"n_embd": "abc"}, {"eos_token_id": "x"}, {"n_layer": -1.5}])
def test_a_config_with_an_odd_value(copy, value):
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | value))
    assert "of mine cannot be read" in refused(copy)


def test_shards(copy, tiny):
    tiny[1].save_pretrained(copy, max_shard_size="60KB")
    (copy / "model.safetensors").unlink()
    shards = sorted(copy.glob("model-*.safetensors"))
    assert len(shards) > 2
    assert first_twelve(load(copy)) == greedy(tiny[1].float(), PROMPT, 12)
    shards[1].unlink()
    assert f"mine lacks {shards[1].name}" in refused(copy)


@pytest.mark.parametrize(
    "index", ["", "{}", "[]", '{"weight_map": []}', '{"weight_map": {"a": 1}}', '{"weight_map": {"a": []}}']
)
def test_a_damaged_index(copy, index):
    (copy / "model.safetensors").unlink()
    (copy / "model.safetensors.index.json").write_text(index)
    refused(copy)


def test_an_index_cannot_name_a_file_elsewhere(copy):
    (copy / "model.safetensors").rename(copy.parent / "outside.safetensors")
    index = {"weight_map": {"wte.weight": "../outside.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "mine lacks outside.safetensors" in refused(copy)


def test_a_pickle_beside_good_weights_is_left_alone(copy, monkeypatch):
    write_files(copy, ["pytorch_model.bin"])
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("a pickle was opened"))
    for implementation in ("native", "transformers"):
        load(copy, implementation=implementation)


# What is one


@pytest.mark.parametrize(
    ("implementation", "kind"),
    [("auto", GPT2), ("native", GPT2), ("transformers", TransformersModel)],
)
def test_the_engine_continues_as_transformers_does(tiny, implementation, kind):
    folder, model = tiny
    engine = load(folder, implementation=implementation)
    assert isinstance(engine.model, kind)
    assert engine.tokenizer.encode("Hello<|end|>")[-1] != END  # what is typed is plain characters
    expected = greedy(model.float(), PROMPT, 12)
    assert len(set(expected)) > 6  # a model that repeats itself would hide a fault
    assert first_twelve(engine) == expected
    assert engine.model.spec.name == "tiny"
    assert engine.model.spec.parameters == sum(weight.numel() for weight in model.parameters())


@pytest.fixture(scope="module")
def opt(tmp_path_factory):
    shape = dict(hidden_size=32, word_embed_proj_dim=32, num_hidden_layers=2, num_attention_heads=4)
    config = OPTConfig(**shape, ffn_dim=64, vocab_size=259, max_position_embeddings=64, **NO_SPECIAL)
    folder = tmp_path_factory.mktemp("models") / "opt"
    return folder, write_model(loud(OPTForCausalLM(config)).float(), folder)


def test_what_we_have_no_own_model_for_goes_to_the_adapter(opt):
    folder, model = opt
    engine = load(folder)
    assert isinstance(engine.model, TransformersModel)
    assert first_twelve(engine) == greedy(model, PROMPT, 12)
    assert "opt" in refused(folder, implementation="native")


def test_an_implementation_that_does_not_exist(tiny):
    with pytest.raises(KshipraError, match="auto, native, transformers"):
        load(tiny[0], implementation="mine")


def test_names_as_the_first_gpt2_had_them(copy, tiny):
    """openai-community/gpt2 has no `transformer.` before its names, no head, and masks among its weights."""
    tensors = load_file(copy / "model.safetensors")
    bare = {name.removeprefix("transformer."): value for name, value in tensors.items()}
    bare.pop("lm_head.weight", None)
    assert "wte.weight" in bare
    bare |= {f"h.{layer}.attn.bias": torch.ones(1, 1, 256, 256).tril() for layer in range(2)}
    save_file(bare, copy / "model.safetensors", metadata={"format": "pt"})
    for implementation in ("native", "transformers"):
        engine = load(copy, implementation=implementation)
        assert first_twelve(engine) == greedy(tiny[1].float(), PROMPT, 12)


def test_end_ids_of_config_generation_config_and_tokenizer_are_joined(copy):
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"eos_token_id": 7}))
    GenerationConfig(eos_token_id=[IM_START, IM_END]).save_pretrained(copy)
    for implementation in ("native", "transformers"):
        assert load(copy, implementation=implementation).model.eos_ids == {7, IM_START, IM_END, END}


@pytest.mark.parametrize("end", [(), 3, [4, 5]])
def test_a_run_stops_at_an_end_id_of_the_generation_config(copy, tiny, end):
    expected = greedy(tiny[1].float(), PROMPT, 12)
    ends = [] if end == () else [expected[at] for at in (end if isinstance(end, list) else [end])]
    GenerationConfig(eos_token_id=ends or None).save_pretrained(copy)
    row = load(copy).generate([PROMPT], params=SamplingParams(12)).rows[0]
    stops = next((at for at, id in enumerate(expected) if id in ends), None)
    assert row.finish_reason == ("length" if stops is None else "stop")
    assert row.token_ids == (expected if stops is None else expected[: stops + 1])


@pytest.mark.parametrize("implementation", ["native", "transformers"])
def test_a_bfloat16_checkpoint(tmp_path, implementation):
    folder = tmp_path / "mine"
    model = write_gpt2(folder, torch.bfloat16)
    assert load_file(folder / "model.safetensors")["transformer.wte.weight"].dtype == torch.bfloat16
    for asked, expected in (("auto", torch.float32), ("bfloat16", torch.bfloat16)):
        engine = load(folder, dtype=asked, implementation=implementation)
        spec = engine.model.spec
        assert (spec.dtype, spec.dtype_bytes) == (str(expected).removeprefix("torch."), expected.itemsize)
        logits = engine.model.forward(torch.tensor([PROMPT]), torch.arange(5)[None], None, None, 1)
        assert logits.dtype == expected
    assert first_twelve(load(folder, implementation=implementation)) == greedy(model.float(), PROMPT, 12)


def test_progress_names_what_is_loaded(tiny):
    told = []
    load(tiny[0], progress=lambda *all: told.append(all))
    assert ("Loading tiny", None, None) in told
