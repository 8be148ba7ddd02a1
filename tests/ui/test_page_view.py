"""The fold from messages to lines: what is told, how often, how much, and that every line is strict JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest
from page_fake import READY, events, make_plan, requests_of

from kshipra.metrics import fold
from kshipra.recipes import recipe_named
from kshipra.types import (
    Ended,
    Failed,
    Finished,
    Loading,
    Message,
    NewToken,
    Plan,
    Queued,
    Ready,
    Reviewing,
    Started,
    StepEvent,
    Stepped,
)
from kshipra.ui import show, words
from kshipra.ui.view import RunView, model_text, queued_text, refusal


def strict(text: str) -> list[list]:
    """The lines of `text` as a strict parser reads them."""

    def refuse(name: str):
        raise AssertionError(f"{name} is not JSON")

    assert text == "" or text.endswith("\n")
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def of_kind(lines: Iterable[list], kind: str) -> list[list]:
    return [line[1:] for line in lines if line[0] == kind]


def view_of(plan: Plan) -> RunView:
    return RunView("run-1", tuple(recipe_named(key) for key in plan.recipes), plan.prompts)


def messages_of(plan: Plan, *, odd: str | None = None, pace: float = 1.0) -> Iterable[tuple[float, Message]]:
    """A whole run's messages with the time at which each comes."""
    now_s = 0.0
    yield now_s, READY
    for key in plan.recipes:
        requests = requests_of(plan)
        yield now_s, Started(key, requests)
        steps = list(events(key, requests, pace=pace, odd=key == odd))
        for step in steps:
            yield now_s + step.at_s, Stepped(key, step)
        now_s += steps[-1].at_s if steps else 0.0
        yield now_s, Finished(key, fold(key, requests, steps), False)
    yield now_s, Ended()


def told(plan: Plan, messages: Iterable[tuple[float, Message]], wake_s: float = 0.05) -> list[list[list]]:
    """The lines of each time that anything was told; the reader wakes every `wake_s`, whatever came."""
    view, batches, wakes = view_of(plan), [], 0
    for at_s, message in messages:
        while wakes * wake_s < at_s:
            batches.append(view.lines(wakes * wake_s))
            wakes += 1
        view.add([message])
    batches.append(view.lines(wakes * wake_s))
    return [strict(batch) for batch in batches if batch]


def flat(batches: Sequence[list[list]]) -> list[list]:
    return [line for batch in batches for line in batch]


def step(
    index: int, *, tokens: int = 1, elapsed_s: float = 0.1, at_s: float, phase: str = "decode"
) -> StepEvent:
    new = tuple(NewToken(0, 5, "x") for _ in range(tokens))
    return StepEvent(index, phase, (0,), new, 1, 0, elapsed_s, at_s, 0, 0, 2**30, None, "VmHWM", 1)


def figures_after(*steps: StepEvent) -> list[str]:
    plan = make_plan(("One",), ("kv_cache",))
    view = view_of(plan)
    view.add([Started("kv_cache", requests_of(plan)), *(Stepped("kv_cache", event) for event in steps)])
    return of_kind(strict(view.lines(0.0)), "f")[-1][1]


def test_a_whole_run_tells_every_piece_of_text_once_and_in_order(plan):
    lines = flat(told(plan, messages_of(plan)))
    for way, key in enumerate(plan.recipes):
        steps = list(events(key, requests_of(plan)))
        for row in range(len(plan.prompts)):
            text = "".join(piece for w, r, piece in of_kind(lines, "t") if (w, r) == (way, row))
            assert text == "".join(t.text for s in steps for t in s.new_tokens if t.row == row)
    assert of_kind(lines, "over") == [[]]


def test_live_figures_are_those_of_the_result_when_all_is_told(plan):
    lines = flat(told(plan, messages_of(plan)))
    for way, key in enumerate(plan.recipes):
        result = fold(key, requests_of(plan), events(key, requests_of(plan)))
        last = [strings for w, strings in of_kind(lines, "f") if w == way][-1]
        assert last[0] == show.digits(result.decode_tok_per_s)
        assert last[1] == show.seconds(result.ttft_s)
        assert last[2] == show.seconds(result.step_latency_s.p50)
        assert last[3] == str(result.forward_passes)


def test_decode_rate_leaves_out_first_tokens_and_prefill():
    steps = [step(0, at_s=0.4, elapsed_s=0.4, phase="prefill")]
    steps += [step(i, at_s=0.4 + 0.02 * i, elapsed_s=0.02) for i in range(1, 50)]
    figures = dict(zip((key for key, _, _ in words.FIGURES), figures_after(*steps), strict=True))
    assert figures["decode_rate"] == "50"  # 51 with the first token, 36.2 with the prefill
    assert figures["ttft"] == "400 ms"


def test_rolling_rate_forgets_what_is_older_than_eight_passes():
    plan = make_plan(("One",), ("kv_cache",))
    view = view_of(plan)
    slow = [step(i, at_s=float(i + 1), elapsed_s=1.0) for i in range(20)]
    fast = [step(20 + i, at_s=20 + 0.1 * (i + 1), elapsed_s=0.1) for i in range(8)]
    view.add([Started("kv_cache", requests_of(plan)), *(Stepped("kv_cache", s) for s in slow + fast)])
    points = of_kind(strict(view.lines(0.0)), "p")[0][1]
    assert [points[0][3], points[19][3], points[-1][3]] == [1.0, 1.0, pytest.approx(10.0)]


@pytest.mark.parametrize("elapsed_s", [0.0, 0.1])
def test_no_token_and_one_token_show_dashes_and_stay_strict_json(elapsed_s):
    assert figures_after(step(0, tokens=0, at_s=elapsed_s, elapsed_s=elapsed_s))[:3] == [
        show.DASH,
        show.DASH,
        show.seconds(elapsed_s) if elapsed_s else "0 ms",
    ]
    one = figures_after(step(0, at_s=elapsed_s, elapsed_s=elapsed_s, phase="prefill"))
    assert (one[0], one[2], one[5]) == (show.DASH, show.DASH, show.DASH)


@pytest.mark.parametrize("limit", [0, 1])
def test_a_run_of_none_or_one_token_ends_with_dashes_and_no_speed_up(limit):
    plan = make_plan(max_new_tokens=limit)
    lines = flat(told(plan, messages_of(plan, pace=0.0)))  # all passes take 0 s: no rate has a meaning
    [[summary]] = of_kind(lines, "summary")
    assert summary["headline"] == ""
    assert [cells[:3] for _, _, cells in summary["rows"]] == [
        ["reference", show.DASH, show.DASH],
        [show.DASH, show.DASH, show.DASH],
        [show.DASH, show.DASH, show.DASH],
    ]
    assert summary["same"] is (True if limit else None)


def test_a_long_run_stays_small_and_its_charts_are_told_at_most_four_times_a_second():
    plan = make_plan(("A prompt of some length",), max_new_tokens=1999)  # no multiple of a stride
    batches = told(plan, messages_of(plan, pace=0.1))
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in flat(batches))
    assert len(text.encode()) < 200_000
    for way in range(3):
        points = [point for w, more in of_kind(flat(batches), "p") if w == way for point in more]
        assert 400 <= len(points) <= 520
        assert points[-1][0] == 1999  # the last pass is always there


def test_charts_and_text_are_told_no_more_often_than_promised():
    plan = make_plan(("One",), ("kv_cache",), max_new_tokens=400)
    view, charts_s, texts_s = view_of(plan), [], []
    for at_s, message in messages_of(plan, pace=0.1):
        view.add([message])
        lines = strict(view.lines(at_s))
        charts_s += [at_s] if of_kind(lines, "p") else []
        texts_s += [at_s] if of_kind(lines, "t") else []
    assert min(b - a for a, b in pairwise(charts_s[:-1])) >= 0.25  # the end is told whenever it comes
    assert min(b - a for a, b in pairwise(texts_s[1:-1])) >= 0.1
    assert len(charts_s) > 4


def test_states_and_the_first_token_are_told_at_once(plan):
    view = view_of(plan)
    assert of_kind(strict(view.lines(0.0)), "run")
    view.add([Started("no_cache", requests_of(plan))])
    lines = strict(view.lines(0.01))
    assert [0, "prefill", "prefill"] in of_kind(lines, "state")
    assert [1, "waiting", "waiting for A"] in of_kind(lines, "state")
    view.add([Stepped("no_cache", next(iter(events("no_cache", requests_of(plan)))))])
    assert of_kind(strict(view.lines(0.02)), "t") == [[0, 0, " the"]]


@pytest.mark.parametrize(
    "text", ["<img src=x onerror=alert(1)>", "<script>alert(1)</script>", "${7*7}", "{{7*7}}"]
)
def test_injection_strings_stay_text_and_no_line_holds_a_tag(text):
    plan = make_plan((text,), ("kv_cache",))
    view = view_of(plan)
    event = StepEvent(0, "prefill", (0,), (NewToken(0, 1, text),), 1, 0, 0.1, 0.1, 0, 0, 0, 0, "", 1)
    view.add([Started("kv_cache", requests_of(plan)), Stepped("kv_cache", event), Failed(text), Ended()])
    written = view.lines(0.0) + refusal("run-2", text)
    lines = strict(written)
    assert "<" not in written
    assert of_kind(lines, "run")[0][1]["prompts"] == [text]
    assert of_kind(lines, "t") == [[0, 0, text]]
    assert of_kind(lines, "status")[-1] == ["failed", text]
    assert of_kind(lines, "refused") == [["run-2", text]]


def test_half_an_emoji_and_a_nul_in_an_error_break_no_line():
    refusal("run-1", "bad \ud83d and \0").encode()


def test_identical_ids_are_said_to_be_identical(plan):
    [[summary]] = of_kind(flat(told(plan, messages_of(plan))), "summary")
    assert (summary["same"], summary["verdict"][0]) == (True, "All 24 tokens identical across A, B, C.")


def test_the_first_difference_is_named_with_prompt_token_and_both_ids(plan):
    lines = flat(told(plan, messages_of(plan, odd="kv_cache")))
    [[summary]] = of_kind(lines, "summary")
    said = "B differs from A first in prompt 2 at new token 5: id 20 against 19."
    assert (summary["same"], summary["verdict"]) == (False, [said])
    assert said in of_kind(lines, "status")[-1][1]


def test_in_low_precision_a_difference_comes_with_its_excuse(plan):
    low = Ready(READY.spec.__class__(**{**READY.spec.__dict__, "dtype": "bfloat16"}), "cpu", 2, 1, 1)
    swapped = (
        (at, low if message is READY else message) for at, message in messages_of(plan, odd="kv_cache")
    )
    [[summary]] = of_kind(flat(told(plan, swapped)), "summary")
    assert "bfloat16" in summary["verdict"][1]


def test_other_seeds_are_not_called_a_difference():
    plan = make_plan(recipes=("no_cache", "kv_cache"), temperature=1.0)

    def with_other_seed(message: Message) -> Message:
        if not isinstance(message, Finished) or message.recipe != "kv_cache":
            return message
        rows = tuple(row.__class__(**{**row.__dict__, "seed": 99}) for row in message.result.rows)
        return Finished(
            message.recipe, message.result.__class__(**{**message.result.__dict__, "rows": rows}), False
        )

    lines = flat(told(plan, ((at, with_other_seed(m)) for at, m in messages_of(plan, odd="kv_cache"))))
    [[summary]] = of_kind(lines, "summary")
    assert "other seeds" in summary["verdict"][0]
    assert "Seed: 7." in summary["verdict"]


def test_speed_ups_name_what_they_are_against(plan):
    [[summary]] = of_kind(flat(told(plan, messages_of(plan))), "summary")
    results = [fold(key, requests_of(plan), events(key, requests_of(plan))) for key in plan.recipes]
    rates = [result.end_to_end_tok_per_s for result in results]
    b, c, c_to_b = rates[1] / rates[0], rates[2] / rates[0], rates[2] / rates[1]
    assert summary["headline"] == (
        f"B is {show.times(b)} A; C is {show.times(c)} A and {show.times(c_to_b)} B, end to end."
    )
    assert [cells[0] for _, _, cells in summary["rows"]] == [
        "reference",
        f"{show.times(b)} A",
        f"{show.times(c)} A",
    ]


def test_a_stopped_run_keeps_its_numbers_and_is_compared_with_nothing(plan):
    view = view_of(plan)
    for key, stopped in (("no_cache", False), ("kv_cache", True)):
        requests = requests_of(plan)
        steps = list(events(key, requests))[: 5 if stopped else None]
        view.add([Started(key, requests), *(Stepped(key, s) for s in steps)])
        view.add([Finished(key, fold(key, requests, steps), stopped)])
    view.add([Ended(stopped=True)])
    lines = strict(view.lines(0.0))
    assert of_kind(lines, "status")[-1][0] == "stopped"
    assert {w: word for w, word, _ in of_kind(lines, "state")} == {0: "done", 1: "stopped", 2: "stopped"}
    [[summary]] = of_kind(lines, "summary")
    assert summary["same"] is None
    assert "Not compared: B (stopped)." in summary["verdict"]
    assert [(key, excluded, cells[0]) for key, excluded, cells in summary["rows"]] == [
        ("no_cache", "", "reference"),
        ("kv_cache", "stopped", show.DASH),
    ]


def test_a_failure_keeps_what_there_was_and_its_sentence(plan):
    requests = requests_of(plan)
    steps = list(events("no_cache", requests))[:3]
    view = view_of(plan)
    view.add([Started("no_cache", requests), *(Stepped("no_cache", s) for s in steps)])
    view.add([Failed("Too big: take less.", "no_cache", fold("no_cache", requests, steps)), Ended()])
    lines = strict(view.lines(0.0))
    assert of_kind(lines, "status")[-1] == ["failed", "Too big: take less."]
    assert [row[:2] for row in of_kind(lines, "summary")[0][0]["rows"]] == [["no_cache", "failed"]]
    assert len(of_kind(lines, "p")[0][1]) == 3


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (Queued(0), "Queued: next in line."),
        (Queued(1), "Queued: 1 run goes first."),
        (Queued(1, loads="gpt2"), "Queued: 1 run goes first; then gpt2 is loaded."),
        (
            Queued(2, loads="gpt2", instead_of="smollm2"),
            "Queued: 2 runs go first; then gpt2 is loaded, which takes the place of smollm2.",
        ),
        (Queued(2, True), "Queued: 2 runs go first, and another model is loaded on the way."),
        (
            Queued(2, True, "gpt2"),
            "Queued: 2 runs go first, and another model is loaded on the way; then gpt2 is loaded, which "
            "takes the place of that one.",
        ),
    ],
)
def test_who_waits_is_told_which_model_is_loaded_then(message, text):
    assert queued_text(message) == text


def test_the_wait_is_never_silent(plan):
    view = view_of(plan)
    view.add([Queued(2), Loading("Fetching gpt2", 12 * 2**20, 98 * 2**20), READY])
    lines = strict(view.lines(0.0))
    assert ["queued", "Queued: 2 runs go first."] in of_kind(lines, "status")
    assert ["loading", "Fetching gpt2: 12 MiB of 98 MiB"] in of_kind(lines, "status")
    assert of_kind(lines, "model")[-1][0] == (
        "SmolLM2-135M-Instruct · cpu, 2 threads, float32 · weights 513 MiB · KV 45 KiB/token"
    )
    assert model_text(None)
    assert model_text(Failed("No network.")) == "No network."


def test_what_follows_the_ways_is_said_and_leaves_the_model_line_alone(plan):
    view = view_of(plan)
    view.add([READY, Reviewing("Measuring this machine's memory and arithmetic")])
    lines = strict(view.lines(0.0))
    assert of_kind(lines, "status")[-1] == ["running", "Measuring this machine's memory and arithmetic"]
    assert of_kind(lines, "model") == [[model_text(READY)]]


def test_a_very_long_prompt_is_cut_in_the_middle_and_says_so():
    view = view_of(make_plan(("a" * 20_000,), ("kv_cache",)))
    [prompt] = of_kind(strict(view.lines(0.0)), "run")[0][1]["prompts"]
    assert len(prompt) < 2_100
    assert "18,000 characters" in prompt


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (0.01234, "0.0123"),
        (16.449, "16.4"),
        (99.96, "100"),
        (1208.4, "1,210"),
        (0.00004, "0.00004"),
    ],
)
def test_numbers_have_three_significant_digits_at_most(value, text):
    assert show.digits(value) == text


def test_units_are_beside_their_numbers():
    assert [show.seconds(s) for s in (0.0504, 1.234, None)] == ["50.4 ms", "1.23 s", "–"]
    assert [show.size(b) for b in (0, 46_080, 513 * 2**20, None)] == ["0", "45 KiB", "513 MiB", "–"]
