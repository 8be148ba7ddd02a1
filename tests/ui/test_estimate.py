"""What the form's plan takes of memory is said before Run, and what does not fit is refused before any weight
is fetched: in the handler, and in a browser."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from page_fake import CHOICE, FakeBackend
from test_links import FIRST

from kshipra.errors import UnreachableError
from kshipra.limits import public
from kshipra.ui.handlers import estimator

TOO_LARGE = "big/model has 7,000 million weights and needs 32.6 GiB of memory: choose a smaller model."


def said(backend: FakeBackend, **changes) -> tuple[str, str]:
    return tuple(json.loads(estimator(backend, CHOICE)(*vars(replace(FIRST, **changes)).values())))


def test_each_kind_of_answer():
    backend = FakeBackend(too_large={"big/model": TOO_LARGE})
    state, text = said(backend)
    assert state == "fits"
    assert text.startswith("smollm2-135m-instruct is loaded. These prompts take about ")
    state, text = said(backend, model="gpt2")
    assert state == "fits"
    assert text.startswith("gpt2: 135 million weights in float32. With these prompts it takes about 64")
    assert text.endswith(" and 8 GiB are free. Run loads it once the runs before have ended.")
    assert said(backend, model="big/model") == ("model", TOO_LARGE)
    backend.free_bytes = 2**20
    state, text = said(backend, max_new_tokens=2_000)
    assert state == "run"
    assert text.endswith("and 1 MiB are free: lower Max new tokens, or shorten the longest prompt.")
    assert said(backend, prompts=[""]) == ("unfinished", "")


def test_a_fault_of_ours_is_logged_and_strangers_are_told_nothing_of_this_machine(monkeypatch, caplog):
    backend = FakeBackend(limits=public("gpt2"))

    def unreachable(plan):
        raise UnreachableError("gpt2 cannot be kept in /home/me.", in_public="gpt2 cannot be fetched.")

    monkeypatch.setattr(backend, "estimate", unreachable)
    assert said(backend, model="gpt2") == ("model", "gpt2 cannot be fetched.")
    monkeypatch.setattr(backend, "estimate", lambda plan: 1 / 0)
    assert said(backend, model="gpt2") == ("unfinished", "")
    assert "ZeroDivisionError" in caplog.text


def wait_for(page, text: str) -> None:
    page.wait_for_function(
        "(text) => document.querySelector('.k-estimate').textContent.includes(text)", arg=text
    )


@pytest.mark.slow
def test_the_page_says_what_a_plan_takes_as_it_is_written(open_page):
    nasty = "<img src=x onerror=window.pwned=1>"
    backend = FakeBackend(too_large={"big/model": TOO_LARGE, nasty: f"{nasty} is no model."}, pace=0.1)
    page = open_page(backend)
    wait_for(page, "smollm2-135m-instruct is loaded")
    before = page.inner_text(".k-estimate")
    page.fill(".k-prompts textarea >> nth=0", "word " * 2_000)
    page.wait_for_function("(old) => document.querySelector('.k-estimate').textContent !== old", arg=before)
    for name, text in ((nasty, "is no model"), ("big/model", "7,000 million"), ("gpt2", "Run loads it")):
        page.fill("#model input", name)
        page.keyboard.press("Enter")
        wait_for(page, text)
    assert page.locator("#estimate img").count() == 0
    backend.free_bytes = 700 * 2**20  # enough for the weights alone
    page.fill("#max-new-tokens input", "1000")
    page.keyboard.press("Tab")
    page.wait_for_selector(
        "#estimate [data-state='run'], #estimate[data-state='run'], [data-state='run'] .k-estimate"
    )
    assert backend.runs == []
