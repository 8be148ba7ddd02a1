"""Models of the Hub, from a stub of it: what is asked for, what is not, and what a person is told when it
fails."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hub_stub import Fault, Hub
from huggingface_hub import constants, file_download, snapshot_download
from model_folders import (
    NO_MODEL,
    NOT_OURS,
    greedy,
    is_one_sentence,
    write_config,
    write_files,
    write_gpt2,
)

import kshipra
from kshipra import machine
from kshipra.errors import ModelError, UnreachableError
from kshipra.models import hub as hub_layer
from kshipra.models.outlook import shape_of
from kshipra.models.sources import locate

TOKEN = "a-token-of-nobody"
PROMPT = [72, 101, 108, 108, 111]
ROOT = Path(__file__).parents[2]


def silent(what: str, done: int | None, total: int | None) -> None:
    pass


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repo")
    model = write_gpt2(folder)
    for other in ("pytorch_model.bin", "tf_model.h5", "modeling_own.py", "onnx/own.json"):
        (folder / other).parent.mkdir(exist_ok=True)
        (folder / other).write_bytes(b"not for us")
    for other in ("consolidated.safetensors", "model.fp16.safetensors"):
        (folder / other).write_bytes(b"the same weights once more")
    return folder, model


@pytest.fixture
def hub(tiny, tmp_path, monkeypatch):
    """A stub with one good repository that this process takes for the Hub, and an empty cache."""
    hub = Hub()
    hub.repos["org/tiny"] = tiny[0]
    point_at(hub.address, monkeypatch)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(machine, "threads", lambda: 1)
    yield hub
    hub.close()


def point_at(address: str, monkeypatch) -> None:
    """What HF_ENDPOINT does in a new process."""
    monkeypatch.setattr(constants, "ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


def refused(name: str) -> str:
    with pytest.raises(ModelError) as caught:
        locate(name, progress=silent)
    message = str(caught.value)
    assert is_one_sentence(message), message
    return message


def weights_asked(hub: Hub) -> list[str]:
    kinds = (".safetensors", ".bin", ".gguf", ".h5", ".py")
    return [asked.path for asked in hub.log if "/resolve/" in asked.path and asked.path.endswith(kinds)]


def test_a_model_is_fetched_once_with_progress_in_bytes(hub, tiny, monkeypatch):
    folder, model = tiny
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 8192)
    told = []
    engine = kshipra.load("org/tiny", device="cpu", dtype="float32", progress=lambda *all: told.append(all))
    assert engine.model.spec.name == "org/tiny"
    assert engine.generate([PROMPT]).rows[0].token_ids[:12] == greedy(model.float(), PROMPT, 12)
    assert {asked.path.rsplit("/", 1)[1] for asked in hub.asked("/resolve/")} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    }
    fetching = [(done, total) for what, done, total in told if what == "Fetching org/tiny"]
    wanted = {asked.path.rsplit("/", 1)[1] for asked in hub.asked("/resolve/")}
    size = sum((folder / name).stat().st_size for name in wanted)
    done = [done for done, _ in fetching]
    assert {total for _, total in fetching} == {size}
    assert done == sorted(done)
    assert done[-1] == size
    assert len({count for count in done if 0 < count < size}) > 10

    hub.log.clear()
    again = kshipra.load("org/tiny", device="cpu", dtype="float32")
    assert hub.log == []
    assert again.generate([PROMPT]).rows[0].token_ids == engine.generate([PROMPT]).rows[0].token_ids


def test_progress_does_not_hang_on_the_librarys_own_bars(hub, monkeypatch):
    from huggingface_hub.utils import tqdm as module

    monkeypatch.setattr(sys.modules[module.__module__], "HF_HUB_DISABLE_PROGRESS_BARS", True)
    told = []
    locate("org/tiny", progress=lambda what, done, total: told.append((done, total)))
    assert told[-1][0] == told[-1][1] > 0


def test_a_model_that_does_not_fit_is_refused_before_weights(hub, monkeypatch):
    monkeypatch.setattr("kshipra.engine.runner.free_bytes", lambda device: 10_000)
    with pytest.raises(ModelError, match=r"org/tiny has .* million weights and needs .* choose a smaller"):
        kshipra.load("org/tiny", device="cpu")
    assert weights_asked(hub) == []


def test_the_shape_of_a_model_is_had_without_its_weights(hub, tiny):
    spec = shape_of(" https://huggingface.co/org/tiny/tree/main", torch.float32)
    assert weights_asked(hub) == []
    assert (spec.name, spec.layers, spec.vocabulary) == ("org/tiny", 2, 259)
    stored = (tiny[0] / "model.safetensors").stat().st_size
    assert spec.parameters == stored // 4
    with pytest.raises(UnreachableError, match="org/nothing was not found on the Hub"):
        shape_of("org/nothing", torch.float32)
    locate("org/tiny", progress=silent)
    hub.log.clear()
    assert shape_of("org/tiny", torch.float32).layers == 2
    assert hub.log == []


def test_weights_come_last(hub):
    locate("org/tiny", progress=silent)
    assert "model.safetensors" in hub.log[-1].path


@pytest.mark.parametrize("name", ["sharded", "shard missing"])
def test_all_shards_and_nothing_else(hub, tmp_path, tiny, name):
    sharded = tmp_path / "sharded"
    model = write_gpt2(sharded)
    model.save_pretrained(sharded, max_shard_size="60KB")
    (sharded / "model.safetensors").unlink()
    shards = sorted(path.name for path in sharded.glob("model-*.safetensors"))
    assert len(shards) > 2
    (sharded / "consolidated.safetensors").write_bytes(b"the same once more")
    hub.repos["org/sharded"] = sharded
    if name == "shard missing":
        (sharded / shards[1]).unlink()
        assert shards[1] in refused("org/sharded")
        assert not weights_asked(hub)
        return
    source = locate("org/sharded", progress=silent)
    assert sorted(path.name for path in source.folder.glob("*.safetensors")) == shards
    hub.log.clear()
    assert locate("org/sharded", progress=silent) == source
    assert not hub.log


@pytest.mark.parametrize(
    "name",
    [
        "https://huggingface.co/org/tiny/tree/main",
        "https://huggingface.co/org/tiny/",
        "https://hf.co/org/tiny?not-for-all-audiences=true",
        "huggingface.co/org/tiny",
        "org/tiny/",
        "  org/tiny\n",
    ],
)
def test_a_pasted_address_is_an_id(hub, name):
    assert locate(name, progress=silent).label == "org/tiny"


def test_a_catalogue_name_of_the_hub(hub):
    hub.repos["openai-community/gpt2"] = hub.repos["org/tiny"]
    assert locate("GPT2", progress=silent).label == "gpt2"
    assert "openai-community/gpt2" in hub.log[0].path


@pytest.mark.parametrize("name", NOT_OURS)
def test_a_config_that_is_not_ours_is_refused_before_weights(hub, tmp_path, name):
    config, words = NOT_OURS[name]
    write_config(tmp_path / "repo", config)
    hub.repos["org/other"] = tmp_path / "repo"
    assert words in refused("org/other")
    assert not weights_asked(hub)
    assert len(hub.asked("/resolve/")) == 1  # the config alone


@pytest.mark.parametrize("name", NO_MODEL)
def test_a_list_of_files_that_is_no_model_is_refused_by_the_list(hub, tmp_path, name):
    files, words = NO_MODEL[name]
    write_files(tmp_path / "repo", files)
    hub.repos["org/other"] = tmp_path / "repo"
    message = refused("org/other")
    assert words in message
    assert "org/other" in message
    assert len(hub.log) == 1


@pytest.mark.parametrize("name", ["<img src=x onerror=alert(1)>", "a b", "org/a b", "{{7*7}}", "a/b/c", "-x"])
def test_what_is_no_id_is_quoted_and_asks_nobody(hub, name):
    assert repr(name) in refused(name)
    assert not hub.log


FAULTS = {
    "401": (Fault("/api/", status=401, headers={"X-Error-Code": "RepoNotFound"}), "not found on the Hub"),
    "401, wrong token": (
        Fault(status=401, headers={"X-Error-Message": "Invalid credentials in Authorization header"}),
        "or is private",
    ),
    "404": (Fault("/api/", status=404, headers={"X-Error-Code": "RepoNotFound"}), "check the id"),
    "gated, no access": (
        Fault("/resolve/", status=403, headers={"X-Error-Code": "GatedRepo"}),
        "ask for access",
    ),
    "gated, no token": (
        Fault("/resolve/", status=401, headers={"X-Error-Code": "GatedRepo"}),
        "ask for access",
    ),
    "gated at the weights": (
        Fault("model.safetensors", status=403, headers={"X-Error-Code": "GatedRepo"}),
        "ask for access",
    ),
    "429": (Fault("/api/", status=429, headers={"Retry-After": "1"}), "asked too often"),
    "429 at a file": (Fault("tokenizer.json", "HEAD", status=429), "asked too often"),
    "429 at a file, asked again": (Fault("tokenizer.json", "HEAD", status=429, after=1), "asked too often"),
    "500": (Fault("/api/", status=500), "fault of its own (status 500)"),
    "503 at a file": (Fault("tokenizer.json", "HEAD", status=503), "fault of its own (status 503)"),
    "400": (Fault("/api/", status=400), "refused org/tiny (status 400)"),
    "418": (Fault("/api/", status=418), "refused org/tiny (status 418)"),
    "silence": (Fault("/api/"), "cannot be reached"),
    "silence at a file": (Fault("config.json", "HEAD"), "cannot be reached"),
    "silence in the weights": (Fault("model.safetensors", "GET"), "cannot be reached"),
    "reset in the weights": (Fault("model.safetensors", "GET", cut_after=100_000), "cannot be reached"),
    "end in the weights": (Fault("model.safetensors", "GET", cut_after=0, reset=False), "cannot be reached"),
}


@pytest.mark.parametrize("token", [None, TOKEN], ids=["anonymous", "token"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_one_sentence_and_the_next_try_works(hub, monkeypatch, capfd, caplog, name, token):
    fault, words = FAULTS[name]
    hub.faults.append(fault)
    monkeypatch.setattr(hub_layer, "TIMEOUT_S", 0.2)
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    monkeypatch.setattr(file_download.time, "sleep", lambda seconds: None)  # between the library's own tries
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    start = time.monotonic()
    message = refused("org/tiny")
    assert time.monotonic() - start < 10  # the time-outs above, a few times over
    assert words in message
    assert "tiny" in message
    assert {asked.authorization for asked in hub.log} == {f"Bearer {token}" if token else None}
    assert TOKEN not in message + caplog.text + "".join(capfd.readouterr())
    assert not list(Path(constants.HF_HUB_CACHE).rglob("*.incomplete"))

    hub.faults.clear()
    monkeypatch.setattr(hub_layer, "TIMEOUT_S", 10)  # a busy machine may be slow without a fault
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 10)
    source = locate("org/tiny", progress=silent)
    copy = (source.folder / "model.safetensors").read_bytes()
    assert copy == (hub.repos["org/tiny"] / "model.safetensors").read_bytes()


def test_a_reset_in_the_middle_then_a_load_in_the_same_process(hub, tiny):
    hub.faults.append(Fault("model.safetensors", "GET", cut_after=100_000))
    with pytest.raises(ModelError, match="cannot be reached"):
        kshipra.load("org/tiny", device="cpu")
    assert hub.asked("model.safetensors")
    hub.faults.clear()
    engine = kshipra.load("org/tiny", device="cpu", dtype="float32")
    assert engine.generate([PROMPT]).rows[0].token_ids[:12] == greedy(tiny[1].float(), PROMPT, 12)


def test_a_stream_that_ends_early_is_asked_for_again(hub, monkeypatch):
    monkeypatch.setattr(file_download.time, "sleep", lambda seconds: None)
    hub.faults.append(Fault("model.safetensors", "GET", cut_after=100_000, reset=False, times=1))
    told = []
    source = locate("org/tiny", progress=lambda what, done, total: told.append((done, total)))
    original = hub.repos["org/tiny"] / "model.safetensors"
    assert (source.folder / "model.safetensors").read_bytes() == original.read_bytes()
    assert len(hub.asked("model.safetensors")) == 2
    assert told[-1][0] == told[-1][1]


def test_a_stop_leaves_the_cache_fit_for_the_next_try(hub):
    class Stop(kshipra.KshipraError):
        pass

    def stop_in_the_weights(what, done, total):
        if done > total / 2:
            raise Stop

    with pytest.raises(Stop):
        locate("org/tiny", progress=stop_in_the_weights)
    assert not list(Path(constants.HF_HUB_CACHE).rglob("*.incomplete"))
    assert locate("org/tiny", progress=silent).label == "org/tiny"


def test_nobody_listens_at_the_address(hub, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        point_at(f"http://127.0.0.1:{free.getsockname()[1]}", monkeypatch)
        start = time.monotonic()
        assert "cannot be reached" in refused("org/tiny")
        assert time.monotonic() - start < 2


def test_a_full_or_read_only_cache_is_not_called_a_network_fault(hub, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "file" / "hub"))
    message = refused("org/tiny")
    assert "HF_HOME" in message
    assert "reached" not in message


def test_a_cached_model_needs_nobody_even_if_the_hub_is_silent(hub, monkeypatch):
    locate("org/tiny", progress=silent)
    hub.faults.append(Fault())
    hub.log.clear()
    assert locate("org/tiny", progress=silent).label == "org/tiny"
    assert not hub.log


def test_a_copy_that_another_program_fetched_in_part_is_enough(hub, monkeypatch):
    snapshot_download("org/tiny", allow_patterns=["*.json", "model.safetensors"])
    hub.log.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert (locate("org/tiny", progress=silent).folder / "model.safetensors").is_file()
    assert not hub.log


def test_a_copy_without_weights_is_completed(hub):
    snapshot_download("org/tiny", allow_patterns=["*.json"])
    source = locate("org/tiny", progress=silent)
    assert (source.folder / "model.safetensors").is_file()


def test_offline_and_not_cached_fails_at_once(hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    start = time.monotonic()
    assert "HF_HUB_OFFLINE" in refused("org/tiny")
    assert time.monotonic() - start < 2
    assert not hub.log


OFFLINE = """
import json, sys, time
import kshipra
from kshipra import machine
machine.threads = lambda: 1
from kshipra.engine.runner import load
start = time.monotonic()
try:
    load("org/absent", device="cpu")
except kshipra.ModelError as error:
    message = str(error)
absent_s = time.monotonic() - start
engine = load("org/tiny", device="cpu", dtype="float32")
ids = engine.generate([json.loads(sys.argv[1])]).rows[0].token_ids
print(json.dumps({"message": message, "absent_s": absent_s, "ids": ids}))
"""


def test_a_new_process_offline(hub, tiny, tmp_path):
    """HF_HUB_OFFLINE=1 with everything else as a person sets it: what is cached loads, what is not fails at
    once."""
    locate("org/tiny", progress=silent)
    hub.log.clear()
    settings = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE, json.dumps(PROMPT)],
        env=os.environ | settings,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert not hub.log
    assert tuple(result["ids"][:12]) == greedy(tiny[1].float(), PROMPT, 12)
    assert is_one_sentence(result["message"])
    assert "HF_HUB_OFFLINE" in result["message"]
    assert result["absent_s"] < 2


ONLINE = """
import sys
import kshipra
try:
    kshipra.load(sys.argv[1], device="cpu")
except kshipra.ModelError as error:
    print(error)
"""


def test_a_new_process_with_a_token(hub, tmp_path):
    """The whole way by environment alone; the token goes to the Hub and nowhere else."""
    hub.faults.append(Fault("/resolve/", status=403, headers={"X-Error-Code": "GatedRepo"}))
    settings = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path), "HF_TOKEN": TOKEN}
    done = subprocess.run(
        [sys.executable, "-c", ONLINE, "org/tiny"],
        env=os.environ | settings,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "gated" in done.stdout
    (asked,) = hub.asked("/api/models/org/tiny")[:1]
    assert asked.authorization == f"Bearer {TOKEN}"
    assert TOKEN not in done.stdout + done.stderr
