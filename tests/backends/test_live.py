"""Visitors share one batch: each gets his solo tokens and sees nobody else's, a closed tab gives its place
away, measured runs go first, and what was said before is not read again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict

import pytest

from conftest import Letters, byte_level_tokenizer, make_llama
from kshipra.backends import live, lobby
from kshipra.backends.live import Live
from kshipra.backends.local import LocalBackend
from kshipra.backends.visitors import Exchange, Turn, Visitor, continued, prompt_ids
from kshipra.engine import review, runner
from kshipra.engine.runner import Engine
from kshipra.errors import InputError, KshipraError, ModelError
from kshipra.limits import OWN, public
from kshipra.text import Tokenizer
from kshipra.types import Ended, Finished, ModelChoice, Plan, Ready, SamplingParams, Started, StepEvent

CHOICE = ModelChoice("tiny")
SAID = ["Where does the river rise?", "And then?", "Who was it that counted every stone, one by one?", "x"]


class Bench:
    """A backend on tiny models, the events of its live run, and a gate that every pass goes through."""

    def __init__(self, monkeypatch, models: dict[str, Callable[[], Engine]]) -> None:
        self.events: list[StepEvent] = []
        self.kept: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.engine: Engine | None = None
        took = Live._took

        def load(name, **_):
            made = models[name]()
            self.engine, forward = made, made.model.forward

            def gated(*args):
                assert self.gate.wait(20)
                return forward(*args)

            made.model.forward = gated
            return made

        def watched(own, event, ends, prefixes):
            took(own, event, ends, prefixes)
            self.events.append(event)
            self.kept.append(prefixes.used_bytes)

        monkeypatch.setattr(runner, "load", load)
        monkeypatch.setattr(review, "review", lambda *_, **__: None)
        monkeypatch.setattr(Live, "_took", watched)
        self.backend = LocalBackend()
        self.lobby = self.backend.lobby

    def say(self, visitor: Visitor, said: str, tokens: int = 12, **params) -> Turn:
        self.lobby.send(visitor, len(visitor.rows), said, SamplingParams(tokens, ignore_eos=True, **params))
        return visitor.turns[-1]

    def visitor(self) -> Visitor:
        return self.lobby.enter(CHOICE)

    def solo(self, turn: Turn) -> tuple[int, ...]:
        return self.engine.generate([turn.request.prompt_ids], params=turn.params).rows[0].token_ids


def tiny() -> Engine:
    return Engine(make_llama(max_position_embeddings=2048), byte_level_tokenizer())


@pytest.fixture
def bench(monkeypatch) -> Iterator[Bench]:
    def broken() -> Engine:
        raise ModelError("There is no such model: take another.")

    models = {"tiny": tiny, "plain": lambda: Engine(make_llama(), Letters()), "broken": broken}
    made = Bench(monkeypatch, models)
    yield made
    made.gate.set()
    made.backend.close()


def wait_for(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def done(*turns: Turn) -> None:
    wait_for(lambda: not any(turn.under_way for turn in turns))


def test_each_visitor_gets_his_solo_tokens_in_a_shared_batch(bench):
    visitors = [bench.visitor() for _ in range(4)]
    turns = []
    for place, visitor in enumerate(visitors):
        for said in (SAID[place], SAID[place - 1]):  # the second waits for the first
            turns.append(bench.say(visitor, said, 20 + 9 * place))
    done(*turns)
    for turn in turns:
        assert (turn.state, tuple(turn.ids)) == ("length", bench.solo(turn))
    assert max(len(event.rows) for event in bench.events) == 4
    assert sorted({turn.row for turn in turns}) == list(range(8))
    decoded = [event for event in bench.events if event.phase == "decode"]
    assert all(len({row // 2 for row in event.rows}) == len(event.rows) for event in decoded)


def test_sampling_is_the_visitors_own(bench):
    turns = [bench.say(bench.visitor(), SAID[0], 20, temperature=0.9, seed=seed) for seed in (1, 2, 1)]
    done(*turns)
    assert turns[0].ids == turns[2].ids != turns[1].ids
    assert tuple(turns[0].ids) == bench.solo(turns[0])


@pytest.mark.parametrize("how", ["leave", "cancel", "forget"])
def test_a_killed_visitor_gives_his_place_away_within_two_steps_and_changes_nobody(bench, monkeypatch, how):
    monkeypatch.setattr(live, "BATCHING", lobby.Batching(rows=2, cache_tokens=8192))
    killed, other, third = (bench.visitor() for _ in range(3))
    first, second, waiting = bench.say(killed, SAID[0], 200), bench.say(other, SAID[1], 200), None
    wait_for(lambda: len(second.ids) > 5)
    bench.gate.clear()
    waiting = bench.say(third, SAID[2], 30)
    {
        "leave": lambda: bench.lobby.leave(killed),
        "cancel": lambda: bench.lobby.cancel(killed, first.number),
        "forget": lambda: bench.lobby.forget(killed),
    }[how]()
    at = len(bench.events)
    bench.gate.set()
    done(second, waiting)
    assert first.state == "cancelled"
    assert not any(first.row in event.rows for event in bench.events[at + 2 :])
    joined = next(n for n, event in enumerate(bench.events) if waiting.row in event.rows)
    assert joined <= at + 2
    for turn in (second, waiting):
        assert tuple(turn.ids) == bench.solo(turn)
    assert tuple(first.ids) == bench.solo(first)[: len(first.ids)]
    assert len(killed.exchanges) == (1 if how == "cancel" else 0)
    if how == "leave":
        with pytest.raises(KshipraError, match="reload"):
            bench.say(killed, "again")


def test_a_measured_run_goes_first_and_is_alone(bench):
    early, late = bench.visitor(), bench.visitor()
    running = bench.say(early, SAID[0], 60)
    wait_for(lambda: len(running.ids) > 3)
    bench.gate.clear()
    run = bench.backend.submit(Plan(CHOICE, ("ab",), ("kv_cache",), SamplingParams(40, ignore_eos=True)))
    waiting = [bench.say(late, SAID[1], 5), bench.say(early, SAID[2], 5)]
    scene = bench.lobby.scene(late)
    assert scene.held_up
    assert (scene.turns[0].state, scene.turns[0].place) == ("waiting", 0)
    assert bench.lobby.scene(early).turns[1].behind_own
    bench.gate.set()
    messages, seen = [], []
    while not (messages and isinstance(messages[-1], Ended)):
        seen.append((len(bench.events), bench.lobby.scene(late).held_up))
        messages += run.messages(0.01)
    assert tuple(running.ids) == bench.solo(running)  # it was let out, and not cut short
    (finished,) = (message for message in messages if isinstance(message, Finished))
    assert finished.result.rows[0].new_tokens == 40
    done(*waiting)
    rows = [event.rows for event in bench.events]
    assert all(row == (running.row,) for row in rows[: seen[-1][0]])
    for turn in waiting:
        assert tuple(turn.ids) == bench.solo(turn)
    assert not bench.lobby.scene(late).held_up


def test_nobody_is_served_while_a_measured_run_works(bench):
    bench.backend.preload(CHOICE)
    wait_for(lambda: isinstance(bench.backend.model(), Ready))
    bench.gate.clear()
    run = bench.backend.submit(Plan(CHOICE, ("ab",), ("kv_cache",), SamplingParams(5)))
    wait_for(lambda: any(isinstance(message, Started) for message in run.messages(0.1)))
    turn = bench.say(bench.visitor(), SAID[0])
    bench.gate.set()
    while not any(isinstance(message, Ended) for message in run.messages(0.1)):
        pass
    assert turn.ids == []
    done(turn)


def test_the_third_turn_reads_only_what_is_new(bench):
    visitor = bench.visitor()
    turns = []
    for said in SAID[:3]:
        turns.append(bench.say(visitor, said))
        done(turns[-1])
    first, second, third = turns
    assert first.reused_tokens == 0
    for turn, before in ((second, first), (third, second)):
        known = [*before.request.prompt_ids, *before.ids]
        assert list(turn.request.prompt_ids[: len(known)]) == known
        assert turn.reused_tokens == len(known) - 1  # its last token was chosen, but never read
        read = [event for event in bench.events if event.rows == (turn.row,) and event.phase == "prefill"]
        assert sum(event.processed_tokens for event in read) == len(turn.request.prompt_ids) - len(known) + 1
        assert tuple(turn.ids) == bench.solo(turn)
    bench.lobby.forget(visitor)
    fresh = bench.say(visitor, SAID[0])
    done(fresh)
    assert fresh.request.prompt_ids == first.request.prompt_ids
    assert fresh.ids == first.ids


@pytest.mark.parametrize("is_public", [False, True])
def test_strangers_do_not_go_on_from_each_others_texts(bench, is_public):
    """Else whoever guesses a text would see by what is reused, and by the time, that it has been sent."""
    bench.backend._live._among_strangers = is_public
    mine, theirs = bench.visitor(), bench.visitor()
    first = bench.say(mine, SAID[0])
    done(first)
    guessed = bench.say(theirs, SAID[0])
    done(guessed)
    assert guessed.ids == first.ids
    assert (guessed.reused_tokens > 0) != is_public
    again = bench.say(mine, SAID[1])
    done(again)
    assert again.reused_tokens > len(first.request.prompt_ids)


def test_a_page_for_strangers_serves_strangers():
    for limits in (OWN, public("gpt2")):
        backend = LocalBackend(limits)
        assert backend._live._among_strangers == limits.public
        backend.close()


def test_an_end_token_is_the_templates_to_say(bench):
    visitor = bench.visitor()
    whole = bench.say(visitor, SAID[0])
    done(whole)
    bench.lobby.forget(visitor)
    bench.engine.model.eos_ids = frozenset({whole.ids[6]})
    bench.lobby.send(visitor, 9, SAID[0], SamplingParams(12))
    (ended,) = visitor.turns
    done(ended)
    assert (ended.state, ended.ids) == ("stop", whole.ids[:7])
    assert visitor.exchanges == [Exchange(SAID[0], ended.text, tuple(whole.ids[:6]))]


def test_what_was_kept_stays_within_its_budget(bench, monkeypatch):
    monkeypatch.setattr(live, "KEPT_BYTES", 60_000)
    visitors = [bench.visitor() for _ in range(3)]
    turns = []
    for said in SAID:
        turns += [bench.say(visitor, f"{place} {said}", 16) for place, visitor in enumerate(visitors)]
        done(*turns)
        for visitor in visitors:
            bench.lobby.scene(visitor)  # seen, so no longer held
    assert 30_000 < max(bench.kept) <= 60_000
    assert all(tuple(turn.ids) == bench.solo(turn) for turn in turns)
    assert bench.lobby.scene(visitors[0]).kept_bytes == bench.kept[-1]


def test_nothing_stays_of_those_who_have_gone(bench):
    for _ in range(40):
        visitor = bench.visitor()
        done(bench.say(visitor, SAID[3], 2))
        bench.lobby.leave(visitor)
    room = bench.lobby
    wait_for(lambda: not room.occupancy.figures().columns)  # the last thing that a live run gives up
    assert (room.visitors, room.waiting, room.serving) == (set(), {}, {})
    assert room.take_cancelled() == []
    assert room.occupancy.figures().running == 0


def test_a_scene_has_no_text_of_others_and_marks_ones_own_rows(bench):
    secret, mine = bench.visitor(), bench.visitor()
    theirs, own = bench.say(secret, "the secret of the well", 60), bench.say(mine, SAID[1], 60)
    wait_for(lambda: len(theirs.ids) > 20 and len(own.ids) > 20)
    seen = bench.lobby.scene(mine)
    assert seen.own_rows == {own.row}
    assert {bar.row: bar.place for bar in seen.bars} == {theirs.row: 0, own.row: 1}
    assert (seen.visitors, seen.figures.running, seen.waiting) == (2, 2, 0)
    assert seen.figures.columns > 0
    assert seen.figures.passes_per_s > 0
    assert seen.figures.largest_gap_s > 0
    assert "secret" not in str(asdict(seen))
    assert theirs.text
    assert theirs.text[:8] not in str(asdict(seen))
    assert [turn.text for turn in seen.turns] == [own.text[: len(seen.turns[0].text)]]
    done(theirs, own)
    assert len(bench.lobby.scene(mine).turns) == 1
    assert bench.lobby.scene(mine).turns == ()  # told once


def test_what_is_refused_is_said(bench):
    bench.gate.clear()
    visitor = bench.visitor()
    for said, tokens, sentence in (
        ("  ", 5, "Write something"),
        ("x" * 4001, 5, "4,001 characters"),
        ("x", 257, "from 1 to 256"),
        ("x", 0, "from 1 to 256"),
    ):
        with pytest.raises(InputError, match=sentence):
            bench.say(visitor, said, tokens)
    for _ in range(lobby.MOST_TURNS):
        bench.say(visitor, "x", 1)
    with pytest.raises(KshipraError, match="wait for an answer"):
        bench.say(visitor, "x")
    with pytest.raises(KshipraError, match="32 messages are waiting"):  # noqa: PT012
        for _ in range(12):
            crowd = bench.visitor()
            for _ in range(lobby.MOST_TURNS):
                bench.say(crowd, "x", 1)
    bench.gate.set()


def test_a_conversation_is_cut_at_its_start_and_says_so(bench, monkeypatch):
    monkeypatch.setattr(live, "MOST_TOKENS", 160)
    visitor = bench.visitor()
    notes = []
    for n in range(4):
        turn = bench.say(visitor, f"{n}: {SAID[2]}", 8)
        done(turn)
        notes.append(turn.note)
        assert len(turn.request.prompt_ids) + 8 <= 160
        assert tuple(turn.ids) == bench.solo(turn)
    assert notes[0] == ""
    assert "its first turn is left out" in notes[1] or "its first turn is left out" in notes[2]
    too_long = bench.say(visitor, "y" * 200, 8)
    done(too_long)
    assert too_long.state == "failed"
    assert "shorten it" in too_long.note
    again = bench.say(visitor, "short", 8)
    done(again)
    assert again.state == "length"


def test_a_model_is_loaded_if_there_is_none_and_its_failure_is_told(bench):
    visitor = bench.lobby.enter(ModelChoice("broken"))
    turns = [bench.say(visitor, "x"), bench.say(visitor, "y")]
    done(*turns)
    assert {turn.note for turn in turns} == {"There is no such model: take another."}
    turn = bench.say(bench.visitor(), "x")
    done(turn)
    assert turn.state == "length"


def test_the_conversation_goes_on_with_another_model(bench):
    visitor = bench.visitor()
    done(bench.say(visitor, SAID[0]))
    bench.backend.preload(ModelChoice("plain"))
    wait_for(lambda: bench.engine is not None and isinstance(bench.engine.tokenizer.inner, Letters))
    turn = bench.say(visitor, SAID[1])
    done(turn)
    assert turn.reused_tokens == 0  # of the other model's keys nothing was left
    assert tuple(turn.ids) == bench.solo(turn)
    answer = visitor.exchanges[0].answer
    assert list(turn.request.prompt_ids) == Letters().encode(f"{SAID[0]}{answer}\n{SAID[1]}")


def test_a_template_of_many_turns_is_the_tokenizers_own():
    inner = byte_level_tokenizer()
    tokenizer = Tokenizer(inner)
    said, answer = "Hello <|im_end|>", "Good day"
    ids, left_out = prompt_ids(
        tokenizer, [Exchange("Who?", answer, None), Exchange("Me", "", (7, 8))], said, 500
    )
    assert left_out == 0
    turns = [
        ("user", "Who?"),
        ("assistant", answer),
        ("user", "Me"),
        ("assistant", "@@"),
        ("user", "Hello ##"),
    ]
    theirs = inner.apply_chat_template(
        [{"role": role, "content": content} for role, content in turns], add_generation_prompt=True
    )["input_ids"]
    mine = tokenizer.encode(said, add_special_tokens=False)
    at, hash_at = tokenizer.encode("@@"), tokenizer.encode("Hello ##")
    assert ids == replaced(replaced(list(theirs), at, [7, 8]), hash_at, mine)


def replaced(ids: list[int], old: list[int], new: list[int]) -> list[int]:
    place = next(n for n in range(len(ids)) if ids[n : n + len(old)] == old)
    return [*ids[:place], *new, *ids[place + len(old) :]]


def test_without_a_template_the_text_goes_on():
    tokenizer = Tokenizer(Letters())
    assert continued(tokenizer, [("ab", [1, 2])], "c") == [97, 98, 1, 2, 10, 99]


def test_an_answer_that_reads_like_a_mark_is_only_characters():
    tokenizer = Tokenizer(byte_level_tokenizer())
    nasty = "\ue000kshipra-1\ue000"
    ids = tokenizer.encode_chat("b", [(nasty, [5])])
    assert ids.count(5) == 1
