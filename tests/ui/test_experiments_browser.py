"""The Experiments part in a real browser: found, opened, played with, and safe against any file."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from experiments_fake import NASTY, document, fake_reports
from page_fake import CHOICE, FakeBackend

from kshipra.ui.build import build_page, launch_options

pytestmark = pytest.mark.slow

STEPS = ".k-finding >> nth=0"
PLOT = "document.querySelector('.k-result-plot')"


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    """A server of its own: what stands on the shelf is settled when a page is built."""
    with fake_reports(tmp_path_factory.mktemp("shelf")):
        backend = FakeBackend()
        built = build_page(backend, CHOICE)
        options = launch_options() | {"server_name": "127.0.0.1", "quiet": True}
        _, url, _ = built.launch(**options, prevent_thread_lock=True)
        yield url
        built.close()
        backend.close()


@pytest.fixture
def page(open_page, address):
    return open_page(url=address)


def enter(page) -> None:
    page.click(".k-places a >> nth=1")
    page.wait_for_selector(".k-shelf li")


def opened(page) -> None:
    page.wait_for_selector(".k-findings h2")
    page.locator(".k-result-plot").first.scroll_into_view_if_needed()  # a figure is drawn when it is seen
    page.wait_for_function(f"{PLOT}?._fullLayout && document.querySelector('.k-switches button')")


def open_shipped(page, name: str = "gpt2/kv-cache") -> None:
    enter(page)
    page.click(f"[data-name='{name}']")
    opened(page)


def give(page, text: str, name: str = "results.json") -> None:
    page.set_input_files(
        ".k-experiments input[type=file]",
        {"name": name, "mimeType": "application/json", "buffer": text.encode()},
    )


def axis_type(page, axis: str) -> str:
    return page.evaluate(f"{PLOT}._fullLayout.{axis}.type")


def press(page, text: str) -> None:
    page.locator(STEPS).get_by_role("button", name=text).click()


def test_nothing_is_built_or_asked_before_a_person_comes(page):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    assert page.locator(".k-experiments > *").count() == 0
    enter(page)
    assert page.locator("#bench").is_hidden()
    assert page.locator(".k-shelf li").count() == 8
    assert "python -m kshipra experiments scope" in page.inner_text(".k-shelf")
    assert [
        url for url in asked if "queue/data" not in url
    ] == []  # answers of the page's start may still come
    page.go_back()
    page.wait_for_selector("#run:visible")
    assert page.locator(".k-experiments").is_hidden()


def test_a_shipped_result_shows_answers_figures_tables_and_where_it_was_measured(page):
    open_shipped(page)
    text = page.inner_text(".k-findings")
    assert "The last step, cache, 1024 tokens, took at most" in text
    assert "Recorded: measured on A processor of 2026, 2026-07-04, not here." in text
    assert "Measured on GPT-2 small (random weights" in page.inner_text(f"{STEPS} >> figcaption")
    assert page.evaluate(f"{PLOT}.data.map((trace) => trace.name)") == [
        "no cache",
        "cache",
        "study B, no cache",
    ]
    assert page.locator(".k-finding tbody tr").count() == 10
    assert page.get_attribute("[data-name='gpt2/kv-cache']", "aria-pressed") == "true"
    assert page.evaluate("document.activeElement.textContent") == "A step's time at every context"
    page.click("[data-name='smollm2-135m-instruct/floor']")
    page.wait_for_selector("[data-name='smollm2-135m-instruct/floor'][aria-pressed=true]")
    assert page.locator(".k-findings h2").count() == 1


def test_axes_published_points_and_numbers_can_be_switched(page):
    open_shipped(page)
    assert (axis_type(page, "xaxis"), axis_type(page, "yaxis")) == ("log", "log")
    press(page, "log y")
    assert (axis_type(page, "xaxis"), axis_type(page, "yaxis")) == ("log", "linear")
    assert page.evaluate(f"{PLOT}._fullLayout.yaxis.range[1]") > 1000  # ms, no longer powers of ten
    press(page, "log y")
    assert axis_type(page, "yaxis") == "log"
    press(page, "published")
    assert page.evaluate(f"{PLOT}._fullData[2].visible") == "legendonly"
    page.locator(f"{STEPS} >> .legendtoggle").nth(2).click()
    page.wait_for_selector(f"{STEPS} >> button[aria-pressed=true]:has-text('published')")
    assert page.evaluate(f"{PLOT}._fullData[2].visible") is True
    press(page, "data")
    cells = page.locator(f"{STEPS} >> .k-data tbody tr >> nth=0").locator("td").all_inner_texts()
    assert cells == ["no cache", "8", "28.1", "28", "28.2"]
    bars = page.locator(".k-finding >> nth=1")
    bars.scroll_into_view_if_needed()
    bars.locator(".k-switch").first.wait_for()
    assert bars.locator(".k-switch").all_inner_texts() == ["data"]  # a bar has no length on a log axis


def test_a_zoom_and_the_legend_survive_a_change_of_theme(page):
    open_shipped(page)
    before = page.evaluate(f"{PLOT}._fullLayout.font.color")
    page.locator(f"{STEPS} >> .legendtoggle").first.click()
    page.wait_for_function(f"{PLOT}._fullData[0].visible === 'legendonly'")
    page.evaluate(f"Plotly.relayout({PLOT}, {{'xaxis.range': [1, 2]}})")
    page.click(".k-model button")
    page.wait_for_function(f"{PLOT}._fullLayout.font.color !== '{before}'")
    assert page.evaluate(f"{PLOT}._fullData[0].visible") == "legendonly"
    assert page.evaluate(f"{PLOT}._fullData[1].line.color") != "#d97706"
    assert page.evaluate(f"{PLOT}.data[2].meta") == "published"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("no json", "mine.json is not JSON: choose a results.json of an experiment."),
        ("{}", "mine.json holds no results of an experiment: choose a results.json."),
    ],
)
def test_a_bad_file_is_one_sentence_and_what_is_open_stays(page, text, sentence):
    open_shipped(page)
    for _ in range(2):  # also the second time
        give(page, text, "mine.json")
        page.wait_for_selector(f".k-experiments .k-said.k-refused:text-is('{sentence}')")
    assert page.locator(".k-finding").count() == 3
    give(page, json.dumps(document()), "mine.json")
    page.wait_for_selector(".k-experiments .k-said:not(.k-refused):has-text('mine.json is open.')")


def test_a_file_that_is_too_large_is_not_sent(page, tmp_path):
    enter(page)
    large = tmp_path / "results.json"
    large.write_bytes(b" " * (8 * 2**20 + 1))
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.set_input_files(".k-experiments input[type=file]", large)
    page.wait_for_selector(".k-experiments .k-refused")
    assert "is larger than 8 MiB" in page.inner_text(".k-experiments .k-said")
    assert asked == []


def test_every_string_of_a_file_stays_literal_text(page):
    enter(page)
    give(page, json.dumps(document(text=NASTY)), f"{NASTY[:30]}.json")
    opened(page)
    for place in (".k-answers", ".k-finding-facts", ".k-findings > header", ".k-finding table"):
        assert NASTY in page.inner_text(place)
    names = page.locator(f"{STEPS} >> .legendtext").evaluate_all(
        "(nodes) => nodes.map((node) => node.textContent)"
    )
    assert names[0] == f"no cache{NASTY}"
    press(page, "data")
    assert NASTY in page.locator(f"{STEPS} >> .k-data tbody td").first.inner_text()
    assert page.evaluate("document.querySelectorAll('.k-experiments script, .k-experiments img').length") == 0
    assert page.evaluate("window.pwned") is None


def test_another_visitor_sees_nothing_of_a_file(page, chromium):
    enter(page)
    give(page, json.dumps(document(text=" of mine")))
    opened(page)
    other = chromium.new_page()
    other.goto(page.url)
    other.wait_for_selector(".k-shelf li")  # the address leads there
    assert "of mine" not in other.content()
    other.close()


@pytest.mark.parametrize("width", [1440, 1024, 390])
def test_nothing_is_wider_than_the_window(open_page, address, width):
    page = open_page(url=address, viewport={"width": width, "height": 844})
    enter(page)
    give(page, json.dumps(document(text="m" * 90)))
    opened(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_keyboard_is_enough(page):
    page.focus(".k-places a >> nth=1")
    page.keyboard.press("Enter")
    page.wait_for_selector(".k-shelf li")
    page.focus("[data-name='gpt2/kv-cache']")
    page.keyboard.press("Enter")
    opened(page)
    page.locator(STEPS).get_by_role("button", name="log x").focus()
    page.keyboard.press("Space")
    assert axis_type(page, "xaxis") == "linear"
