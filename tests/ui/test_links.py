"""Links: what is copied opens as it was, and a link from anybody is checked as a form is."""

from __future__ import annotations

from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from page_fake import CHOICE, FakeBackend
from starlette.datastructures import QueryParams

from kshipra.errors import InputError
from kshipra.recipes import LAB_KEYS
from kshipra.ui.form import Form
from kshipra.ui.links import MAX_CHARS, form_of

FIRST = Form(
    ["One"], ["no_cache", "kv_cache"], "smollm2-135m-instruct", "auto", "auto", "raw", 24, 0, 0, 1, 1, ""
)
NEXT_FRAMES = "new Promise((tell) => requestAnimationFrame(() => requestAnimationFrame(tell)))"
NASTY = '<img src=x onerror="window.pwned=1">&p=1#?${7*7}\n\t 🙂 "'


def opened(**said) -> Form | None:
    return form_of(QueryParams(urlencode(said, doseq=True)), FIRST, CHOICE, ["cpu"])


def test_an_address_without_settings_changes_nothing():
    assert opened() is None
    assert opened(__theme="dark", utm_source="x") is None


def test_what_is_said_is_taken_and_the_rest_stays():
    form = opened(prompts=["a", NASTY], max_new_tokens="7", temperature="0.8", seed="5", chat="chat")
    assert form.prompts == ["a", NASTY]
    assert (form.max_new_tokens, form.temperature, form.seed, form.chat) == (7, 0.8, "5", "chat")
    assert form.recipes == FIRST.recipes
    assert opened(recipes=["static_batch", "no_cache"]).recipes == ["no_cache", "static_batch"]


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"prompts": [""]}, "Prompt 1 is empty"),
        ({"prompts": ["x"] * 17}, "from 1 to 16"),
        ({"prompts": ["x" * (MAX_CHARS + 1)]}, "at most 8,000 characters"),
        ({"recipes": ["beam"]}, "'beam' is not one of"),
        ({"recipes": [LAB_KEYS[1]]}, "is not one of"),
        ({"max_new_tokens": "1e9"}, "max_new_tokens must be"),
        ({"max_new_tokens": "4096"}, "from 0 to 2,048"),
        ({"max_new_tokens": "two"}, "max_new_tokens must be a number, not 'two'"),
        ({"temperature": "nan"}, "Temperature: give a number"),
        ({"temperature": "inf"}, "Temperature: give a number"),
        ({"seed": "-4"}, "Seed: give a whole number"),
        ({"device": "tpu"}, "device must be one of auto, cpu, not 'tpu'"),
        ({"dtype": "int1"}, "dtype must be one of"),
        ({"chat": "<b>"}, "chat must be one of raw, chat"),
        ({"model": "x" * 300}, "Model: give a name"),
    ],
)
def test_what_a_form_would_not_take_is_refused(said, named):
    with pytest.raises(InputError, match=named.replace("(", r"\(")):
        opened(**said)


def copied(page, **expected: str) -> dict[str, list[str]]:
    """Copy the link, again until it says `expected`: what was typed reaches the form a little later."""
    for _ in range(1000):
        page.click("#copy-link")
        said = parse_qs(urlsplit(page.url).query)
        if all(said.get(name) == [value] for name, value in expected.items()):
            return said
        page.wait_for_timeout(50)
    raise AssertionError(f"The link says {said}.")


def prompts_of(page) -> list[str]:
    return [box.input_value() for box in page.locator("#prompts textarea").all()]


@pytest.mark.slow
def test_a_copied_link_opens_as_it_was(open_page, chromium):
    page = open_page()
    page.locator("#prompts textarea").nth(0).fill(NASTY)
    page.locator("#recipes").get_by_label("A No cache").uncheck()
    page.fill("#max-new-tokens input", "6")
    page.click("#sampling button")
    page.wait_for_selector("#repetition-penalty input")
    page.evaluate(NEXT_FRAMES)  # Gradio mounts these fields now; a fill in the same frame is set back
    page.fill("#temperature input", "0.7")
    page.fill("#seed textarea, #seed input", "42")
    said = copied(page, seed="42", temperature="0.7", max_new_tokens="6")
    assert said["prompts"][0] == NASTY
    other = open_page(url=page.url)
    other.wait_for_function("document.querySelector('#max-new-tokens input').value === '6'")
    other.wait_for_function("document.querySelectorAll('.k-column').length === 2")
    assert prompts_of(other) == prompts_of(page)
    assert other.locator("#recipes").get_by_label("B KV cache").is_checked()
    assert not other.locator("#recipes").get_by_label("A No cache").is_checked()
    assert other.evaluate("window.pwned") is None
    other.click("#run")
    other.wait_for_selector("#status[data-state='done']")
    assert other.inner_text("#column-kv_cache .k-passes dd") == "18"  # three prompts of six tokens
    assert "Seed: 42" in other.inner_text("#summary")


@pytest.mark.slow
def test_a_bad_link_is_said_and_changes_nothing(open_page, serve):
    url = serve(FakeBackend())
    page = open_page(
        url=f"{url}?max_new_tokens=99999&prompts=x&model=%3Cimg%20src%3Dx%20onerror%3Dwindow.pwned%3D1%3E"
    )
    page.wait_for_selector("text=The link was not taken")
    assert prompts_of(page)[0] == "Once upon a time"
    assert page.input_value("#max-new-tokens input") == "24"
    assert page.evaluate("window.pwned") is None


@pytest.mark.slow
def test_the_pages_parts_are_changed_without_loading_it_anew_and_keep_the_links_settings(open_page, serve):
    page = open_page(url=f"{serve(FakeBackend())}?max_new_tokens=7")
    page.evaluate("window.isThisPage = true")
    for at, part in ((1, ".k-experiments"), (2, ".k-live"), (0, "#run")):
        page.click(f".k-places a >> nth={at}")
        page.wait_for_selector(f"{part}:visible")
    assert page.evaluate("window.isThisPage")
    assert "max_new_tokens=7" in page.url


@pytest.mark.slow
def test_what_is_too_long_for_a_link_says_so(open_page):
    page = open_page()
    page.locator("#prompts textarea").nth(0).fill("many words " * 900)
    page.evaluate(  # the button says it for a moment only
        "() => { window.said = []; const link = document.querySelector('#copy-link');"
        " new MutationObserver(() => said.push(link.textContent))"
        ".observe(link, { childList: true, subtree: true, characterData: true }); }"
    )
    page.evaluate(NEXT_FRAMES)  # what was typed has reached the form
    page.click("#copy-link")
    page.wait_for_function("said.some((text) => text.includes('Too long for a link'))")
    assert "?" not in page.url
