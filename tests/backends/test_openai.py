"""The client of a server: what it makes of every kind of answer, and what it never tells or asks."""

from __future__ import annotations

import logging
import socket
import time
from types import SimpleNamespace

import pytest
from model_folders import is_one_sentence
from openai_stub import DONE, ended, event, said, stub_server, usage

from conftest import Letters
from kshipra import metrics
from kshipra.backends import addresses, openai
from kshipra.backends.addresses import Target, base_of, is_outside, target_of
from kshipra.backends.openai import ServerEngine
from kshipra.errors import InputError, ServerError
from kshipra.text import Tokenizer
from kshipra.types import Batching, Request, SamplingParams, Server

KEY = "sk-secret-1234"
HERE = SimpleNamespace(tokenizer=Tokenizer(Letters()))


@pytest.fixture(scope="module")
def server():
    with stub_server() as stub:
        yield stub


@pytest.fixture(autouse=True)
def no_environment(monkeypatch, request):
    for name in (addresses.URL, addresses.MODEL, addresses.KEY, addresses.ALLOW):
        monkeypatch.delenv(name, raising=False)


def requests_of(*prompts: str, **params) -> list[Request]:
    return [Request(row, text, (1, 2), SamplingParams(**params)) for row, text in enumerate(prompts)]


def engine_of(server, **options) -> ServerEngine:
    server.asked.clear()
    server.hung_up.clear()
    return ServerEngine(Target(f"{server.address}/v1", "tiny", KEY), HERE, **options)


def result_of(server, *prompts: str, **options):
    requests = requests_of(*prompts or ("Say",))
    return metrics.fold("server", requests, engine_of(server, **options).run(requests))


def test_tokens_are_those_that_the_server_counts_and_pieces_are_not(server):
    """Three pieces, one of them empty, one with half the answer: seven tokens all the same."""
    server.streams(said("Hel"), 0.05, said(""), said("lo there, you"), ended("length"), usage(7), DONE)
    result = result_of(server)
    (row,) = result.rows
    assert (row.text, row.new_tokens, row.finish_reason) == ("Hello there, you", 7, "length")
    assert row.token_ids == ()
    assert result.new_tokens == 7
    assert result.decode_tok_per_s == pytest.approx(6 / (result.wall_s - result.ttft_s))
    assert result.largest_gap_s > 0.04
    assert result.step_latency_s.p50 == result.largest_gap_s  # the one gap between two pieces
    unknown = ("forward_passes", "kv_bytes", "kv_held_bytes", "peak_extra_bytes", "pad_tokens", "prefill_s")
    assert [getattr(result, name) for name in unknown] == [None] * 6
    assert row.prompt_tokens is None


def test_without_a_count_there_is_a_dash_or_its_own_tokenizer(server):
    server.streams(said("abc"), 0.02, said("de"), ended("stop"), DONE)
    result = result_of(server)
    assert (result.rows[0].text, result.new_tokens) == ("abcde", None)
    assert (result.end_to_end_tok_per_s, result.decode_tok_per_s) == (None, None)
    assert result.ttft_s is not None
    assert result_of(server, counts=True).new_tokens == 5  # Letters has one token a letter


def test_a_text_in_one_piece_has_no_decode_rate(server):
    server.streams(0.05, said("all at once"), ended(), usage(60), DONE)
    result = result_of(server)
    assert (result.new_tokens, result.decode_tok_per_s) == (60, None)
    assert result.end_to_end_tok_per_s == pytest.approx(60 / result.wall_s)


def test_counts_that_come_with_every_piece_are_steps_and_not_sums(server):
    pieces = [said(text, usage={"completion_tokens": n}) for text, n in (("a", 2), ("b", 3), ("c", 9))]
    server.streams(*pieces, ended(), DONE)
    result = result_of(server)
    assert [token.count for step in result.steps for token in step.new_tokens] == [2, 1, 6, 0]
    assert result.new_tokens == 9


def test_prompts_are_asked_together_or_as_many_as_rows_says(server):
    server.streams(said("x"), 0.2, said("y"), ended(), usage(2), DONE)
    requests = requests_of("one", "two", "three")
    together = list(engine_of(server).run(requests))
    assert together[-1].at_s < 0.5
    assert [event.at_s for event in together] == sorted(event.at_s for event in together)
    assert sum(event.elapsed_s for event in together) == pytest.approx(together[-1].at_s)
    assert metrics.fold("server", requests, together).new_tokens == 6
    assert list(engine_of(server).run(requests, batching=Batching(rows=1)))[-1].at_s > 0.6


def test_what_is_asked_is_the_interface_and_no_more(server):
    server.streams(ended(), usage(0), DONE)
    requests = requests_of("Hi", max_new_tokens=5, temperature=0.5, top_p=0.9, seed=7, stop=("\n",))
    list(engine_of(server).run(requests))
    ((path, headers, body),) = server.asked
    assert path == "/v1/completions"
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert body == {
        "model": "tiny", "prompt": "Hi", "max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "seed": 7,
        "stop": ["\n"], "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    list(engine_of(server).run([Request(0, "", (0, 1, 2), SamplingParams())]))
    assert server.asked[0][2]["prompt"] == "abc"  # what these ids say
    server.streams(event({"choices": [{"delta": {"content": "yes"}}]}), ended("stop"), usage(1), DONE)
    (row,) = result_of(server, "Hi", chat=True).rows
    assert row.text == "yes"
    assert server.asked[0][0] == "/v1/chat/completions"
    assert server.asked[0][2]["messages"] == [{"role": "user", "content": "Hi"}]
    with pytest.raises(InputError, match="top-k"):
        engine_of(server).check(requests_of("Hi", top_k=5))


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [
        (401, f"no such key: {KEY}", "take the key"),
        (403, "", "take the key"),
        (404, '{"error": {"message": "The model `tiny` does not exist"}}', "no model of that name"),
        (400, f'{{"detail": "pinned to x, not {KEY}"}}', "pinned to x, not …"),
        (429, "", "too much to do"),
        (503, '{"error": "worker died"}', "worker died"),
        (302, "", "sends on to another address"),
        (200, "<html><body>Welcome</body></html>", "no stream of OpenAI's"),
    ],
)
def test_a_refusal_is_one_sentence_without_the_key(server, status, body, sentence, caplog):
    caplog.set_level(logging.INFO)
    server.refuses(status, body, "text/html" if "<html" in body else "application/json")
    with pytest.raises(ServerError) as caught:
        result_of(server)
    said_here = str(caught.value)
    assert sentence in said_here
    assert is_one_sentence(said_here)
    assert KEY not in said_here + caplog.text + repr(caught.value.__context__)
    assert len(server.asked) == 1  # no redirect was followed


def test_a_stream_that_breaks_off_keeps_what_had_come(server):
    for parts in ([said("half an"), 0.05], [said("half an"), 0.02, event({"error": {"message": "oom"}})]):
        server.streams(*parts)
        requests, events = requests_of("Say"), []
        with pytest.raises(ServerError) as caught:
            events.extend(engine_of(server).run(requests))
        assert is_one_sentence(str(caught.value))
        (row,) = metrics.fold("server", requests, events).rows
        assert (row.text, row.finish_reason, row.new_tokens) == ("half an", "cancelled", None)
    server.streams(b"data: not json\n\n")
    with pytest.raises(ServerError, match="not OpenAI's interface"):
        result_of(server)


def test_silence_and_closed_ports_have_their_sentences(server, monkeypatch):
    monkeypatch.setattr(openai, "SILENT_S", 0.1)
    server.streams(said("a"), 2.0)
    with pytest.raises(ServerError, match="fell silent"):
        result_of(server)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = Target(f"http://127.0.0.1:{free.getsockname()[1]}/v1", "tiny")
        with pytest.raises(ServerError, match="refuses the connection"):
            list(ServerEngine(nobody, HERE).run(requests_of("a")))
    spoken = Target(f"{server.address.replace('http:', 'https:')}/v1", "tiny")
    with pytest.raises(ServerError, match="does not speak https"):
        list(ServerEngine(spoken, HERE).run(requests_of("a")))


@pytest.mark.parametrize("before", [[], [said("a")]])
def test_stop_closes_the_connection_at_once(server, before):
    server.streams(*before, 5.0, said("b"), ended(), DONE)
    stops_at_s = time.monotonic() + 0.2
    events = list(engine_of(server).run(requests_of("a"), stopped=lambda: time.monotonic() > stops_at_s))
    assert len(events) == len(before)
    assert server.hung_up.wait(0.5)
    assert time.monotonic() < stops_at_s + 1


def test_the_key_of_the_environment_goes_to_its_address_alone(monkeypatch):
    monkeypatch.setenv(addresses.URL, "http://own.example:8000/v1/")
    monkeypatch.setenv(addresses.MODEL, "own-model")
    monkeypatch.setenv(addresses.KEY, KEY)
    assert target_of(Server(), public=False) == Target("http://own.example:8000/v1", "own-model", KEY)
    other = target_of(Server("http://other.example", "m"), public=False)
    assert (other.address, other.key) == ("http://other.example/v1", "")
    assert KEY not in repr(target_of(Server(), public=False))
    with pytest.raises(InputError, match="Server model"):
        target_of(Server("http://other.example"), public=False)


@pytest.mark.parametrize(
    "address", ["", "ftp://a", "http://", "http://me:pw@a", "http://a/?q=1", "http://a:99999", "file:///etc"]
)
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(InputError) as caught:
        base_of(address)
    assert is_one_sentence(str(caught.value))


def test_strangers_reach_listed_addresses_only_and_none_inside(server, monkeypatch):
    monkeypatch.setenv(addresses.ALLOW, f"https://api.example, {server.address}")
    assert target_of(Server("https://API.example/v1", "m"), public=True).public
    with pytest.raises(InputError, match="its own list"):
        target_of(Server("https://api.example:444", "m"), public=True)
    inside = ServerEngine(target_of(Server(server.address, "m"), public=True), HERE)
    server.asked.clear()
    with pytest.raises(ServerError, match="private network") as caught:
        list(inside.run(requests_of("a")))
    assert "127.0.0.1" not in str(caught.value)
    assert server.asked == []
    inner = (
        "127.0.0.1 10.1.2.3 172.16.0.1 169.254.169.254 192.168.0.1 100.64.0.1 0.0.0.0 224.0.0.1 "
        "::1 64:ff9b::7f00:1 fe80::1%eth0 fc00::1 ::ffff:127.0.0.1 2002:7f00:1::"
    )
    for number in inner.split():
        assert not is_outside(number), number
    assert all(map(is_outside, ("93.184.216.34", "2606:4700::1111")))


def test_the_connection_goes_to_the_number_that_was_checked(server, monkeypatch):
    """A name that is looked up once outside and then inside is the trick; here it is looked up once."""
    port = int(server.address.rpartition(":")[2])
    looked_up = []

    def look_up(host, *rest, **more):
        assert host not in looked_up
        looked_up.append(host if isinstance(host, str) else host.decode())
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(addresses, "is_outside", lambda number: True)
    monkeypatch.setenv(addresses.ALLOW, f"http://model.example:{port}")
    target = target_of(Server(f"http://model.example:{port}", "m", KEY), public=True)
    server.asked.clear()
    server.streams(said("hello"), ended(), usage(1), DONE)
    requests = requests_of("a")
    result = metrics.fold("server", requests, ServerEngine(target, HERE).run(requests))
    assert result.rows[0].text == "hello"
    assert server.asked[0][1]["Host"] == f"model.example:{port}"
    assert looked_up[0] == "model.example"
    assert "model.example" not in looked_up[1:]
