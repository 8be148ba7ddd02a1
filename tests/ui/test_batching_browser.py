"""Ragged prompts, guesses and reuse as a visitor meets them, with a FakeBackend behind the page."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from page_fake import FakeBackend, events, make_plan, requests_of
from record_fake import document, give, give_good
from test_export_browser import LATER

pytestmark = pytest.mark.slow

RAGGED = replace(
    make_plan(("One", "Two two", "Three three three", "Four"), ("static_batch", "continuous", "speculative")),
    limits=(2, 9, None, 4),
    rows=2,
)


def parts_of(value: Any, path: list) -> Iterator[dict]:
    """Everything at `path` in `value`, where a number stands for any."""
    if not path:
        yield value
        return
    for own in value if isinstance(path[0], int) else (value[path[0]],):
        yield from parts_of(own, path[1:])


def finish(page) -> None:
    page.click("#run")
    page.wait_for_selector("#status[data-state='done']")


def pick(page, preset: str) -> None:
    page.select_option("#prompts select", label=preset)


def columns(page, *keys: str) -> None:
    """Wait until the page is about these ways."""
    ids = ",".join(f"column-{key}" for key in keys)
    page.wait_for_function(
        f"String([...document.querySelectorAll('.k-column')].map((c) => c.id)) === '{ids}'"
    )


def limits_of(page) -> list[str]:
    return [box.input_value() for box in page.locator("#prompts .k-limit").all()]


def figures(page, way: str) -> dict[str, str]:
    names, values = (
        page.locator(f"#column-{way} .k-figures {tag}").all_inner_texts() for tag in ("dt", "dd")
    )
    return dict(zip(names, values, strict=True))


def table(page) -> dict[str, dict[str, str]]:
    """The summary's cells by letter and head."""
    heads = page.locator("#summary thead th").all_inner_texts()
    rows = [row.locator("th, td").all_inner_texts() for row in page.locator("#summary tbody tr").all()]
    return {row[0].strip()[0]: dict(zip(heads, row, strict=True)) for row in rows}


def test_the_ragged_preset_is_the_whole_lesson(open_page):
    backend = FakeBackend(pace=0.1)
    page = open_page(backend)
    assert page.locator("#prompts .k-limit").first.is_hidden()
    pick(page, "Ragged")
    columns(page, "static_batch", "continuous")
    assert page.locator("#prompts .k-limit").first.is_visible()
    assert limits_of(page) == ["8", "48", "10", "40", "6", "36", "12", "32"]
    finish(page)
    plan = backend.runs[0].plan
    assert (plan.recipes, plan.rows) == (("static_batch", "continuous"), 4)
    assert plan.limits == (8, 48, 10, 40, 6, 36, 12, 32)
    page.locator("#chart-rows").scroll_into_view_if_needed()
    traces = "document.querySelector('#chart-rows .k-plot').data"
    page.wait_for_function(f"{traces}?.some((trace) => trace.fill === 'tonexty')")
    static, shade = page.evaluate(f"{traces}.slice(0, 2).map(({{ y }}) => y)")
    assert (max(static), min(static), set(shade)) == (4, 1, {4})
    assert page.evaluate("document.querySelector('#chart-rows .k-plot')._fullLayout.yaxis.dtick") == 1
    cells = table(page)
    assert float(cells["C"]["padding"].split()[0]) > 20
    assert {"largest gap", "tokens/pass", "wall"} <= set(cells["D"])
    assert not {"accepted", "reused"} & set(cells["D"])  # of no way here
    page.click("#chart-rows .k-switch")
    assert page.locator("#chart-rows tbody tr").count() == backend.runs[0].steps


def test_rows_have_no_chart_where_none_come_or_go(open_page):
    page = open_page()
    finish(page)
    assert page.locator("#chart-rows").is_hidden()
    assert page.locator(".k-chart:visible").count() == 3


def test_a_visitor_gives_limits_and_takes_them_back(open_page):
    backend = FakeBackend(pace=0.1)
    page = open_page(backend)
    page.get_by_role("button", name="limits", exact=True).click()
    page.get_by_label("Limit of new tokens of prompt 2").fill("3")
    page.click("#prompts .k-add")  # keeps them in sight
    page.locator("#prompts textarea").nth(3).fill("More")
    assert limits_of(page) == ["", "3", "", ""]
    page.fill("#max-new-tokens input", "5")
    page.fill("#rows input", "2")
    finish(page)
    assert backend.runs[0].plan.limits == (None, 3, None, None)
    assert backend.runs[0].plan.rows == 2
    assert page.inner_text("#column-kv_cache .k-passes dd") == str(5 + 3 + 5 + 5)
    page.get_by_label("Limit of new tokens of prompt 2").fill("-3")
    page.click("#run")
    page.wait_for_selector("#status[data-state='failed']")
    assert "Max new tokens must be from 0 to 2,048, not -3." in page.inner_text("#status")
    page.get_by_role("button", name="limits", exact=True).click()
    assert page.locator("#prompts .k-limit").first.is_hidden()
    finish(page)
    assert backend.runs[-1].plan.limits == ()


def test_guesses_that_came_true_are_underlined_and_the_text_is_the_same(open_page):
    page = open_page(FakeBackend(pace=0.1))
    pick(page, "Copy")
    columns(page, "kv_cache", "speculative")
    finish(page)
    texts = [page.inner_text(f'#column-{way} [data-row="0"] .new') for way in ("kv_cache", "speculative")]
    assert texts[0] == texts[1]
    assert page.locator("#column-kv_cache .k-guessed").count() == 0
    row = page.locator('#column-speculative [data-row="0"] .new')
    guessed = row.locator(".k-guessed").all_inner_texts()
    assert len(guessed) > 8
    assert "underline" in row.locator(".k-guessed").first.evaluate(
        "(node) => getComputedStyle(node).textDecoration"
    )
    assert row.locator(".k-fresh").count() == 0  # all settled
    found = figures(page, "speculative")
    assert found["accepted"].split(" of ")[0] == table(page)["E"]["accepted"].split(" of ")[0]
    assert found["acceptance"].endswith(" %")
    assert float(found["tokens/pass"]) > 2
    assert "accepted" not in figures(page, "kv_cache")
    assert page.inner_text(".k-headline").startswith("E is ")


def test_a_new_way_says_why(open_page):
    page = open_page()
    for label in ("D Continuous batch", "E Prompt lookup"):
        page.locator("#recipes").get_by_label(label, exact=True).check()
    columns(page, "no_cache", "kv_cache", "static_batch", "continuous", "speculative")
    for way, said in (
        ("continuous", "as soon as a place is free"),
        ("speculative", "one pass checks them all"),
    ):
        page.locator(f"#column-{way}").get_by_text("why?").hover()
        assert said in page.inner_text(".k-stage ~ .k-tip, .k-tip.shown")


def test_reuse_is_off_until_asked_for_and_says_what_is_kept(open_page):
    backend = FakeBackend(pace=0.1, reused=2)
    page = open_page(backend)
    finish(page)
    assert not backend.runs[0].plan.reuse
    page.click("#reuse-part button >> nth=0")
    page.wait_for_selector("#reuse input")
    assert page.inner_text("#kept") == "Nothing is kept yet."
    page.check("#reuse input")
    finish(page)
    assert backend.runs[1].plan.reuse
    page.wait_for_function(
        "document.querySelector('#kept').textContent.includes('Kept: 3 texts, 3 MiB of 256 MiB.')"
    )
    assert "It keeps no cache that could be reused." in page.inner_text("#column-no_cache .k-sentence")
    assert "reused" not in figures(page, "no_cache")
    assert figures(page, "kv_cache")["reused"] == "6"
    cells = table(page)
    assert cells["A"]["reused"] == "–"
    assert cells["B"]["reused"].startswith("6 of ")
    page.click("#clear-kept")
    page.wait_for_function("document.querySelector('#kept').textContent.includes('Nothing is kept yet.')")
    assert backend.texts == 0


def test_a_copied_link_brings_limits_back(open_page):
    page = open_page(FakeBackend(pace=0.1))
    pick(page, "Copy")
    columns(page, "kv_cache", "speculative")
    for _ in range(100):  # what was picked reaches the form a little later
        page.click("#copy-link")
        if "limits=36" in page.url:
            break
        page.wait_for_timeout(50)
    other = open_page(url=page.url)
    other.wait_for_function("document.querySelectorAll('#prompts .k-limit').length === 3")
    assert limits_of(other) == ["36", "30", "14"]
    assert other.locator("#prompts .k-limit").first.is_visible()
    assert (
        other.locator("#prompts select").evaluate("(node) => node.selectedOptions[0].textContent") == "Copy"
    )


def test_a_ragged_run_goes_out_and_comes_back(open_page):
    steps = {key: list(events(key, requests_of(RAGGED), at_once=2)) for key in RAGGED.recipes}
    whole = document(RAGGED, change=lambda key, _: steps[key])
    page = open_page()
    give_good(page, whole)
    page.click("#tab-prediction")
    formulas = page.locator(".k-prediction tbody tr td:nth-last-child(2)").all_inner_texts()
    assert formulas[1] == "–"  # of the way whose rows come and go
    assert "new tokens a pass" in page.inner_text(".k-prediction")
    page.click("#tab-timeline")
    bar = page.locator("[data-way='speculative'] .k-timebar")
    bar.focus()
    page.keyboard.press("End")
    assert "guessed" in bar.get_attribute("aria-valuetext")
    page.click("#tab-export")
    with page.expect_download() as waited:
        page.get_by_role("button", name="CSV", exact=True).click()
    head, *lines = waited.value.path().read_text(encoding="utf-8").splitlines()
    assert head.endswith(",reused_tokens,drafted_tokens")
    guessed = sum(int(line.rsplit(",", 1)[1]) for line in lines)
    assert guessed == sum(step.drafted_tokens for step in steps["speculative"])
    with page.expect_download() as waited:
        page.get_by_role("button", name="HTML", exact=True).click()
    report = waited.value.path().read_text(encoding="utf-8")
    assert "2 to 9 new tokens at most · 2 rows at once" in report
    give_good(page, report, "report.html")


def test_an_older_run_without_the_new_parts_opens(open_page):
    old = copy.deepcopy(document())
    for name in ("limits", "rows", "reuse"):
        del old["settings"][name]
    del old["settings"]["choice"]["draft"]
    for result in (way["result"] for way in old["ways"]):
        for *path, name in LATER:  # of all rows, steps and tokens, where the path says the first
            for part in parts_of(result, path):
                del part[name]
    old["summary"]["rows"] = [[key, note, cells[:12]] for key, note, cells in old["summary"]["rows"]]
    page = open_page()
    page.wait_for_function("window.Plotly")  # else the report has no charts
    give_good(page, old)
    for view in ("timeline", "proof", "prediction", "history", "export"):
        page.click(f"#tab-{view}")
    with page.expect_download() as waited:
        page.get_by_role("button", name="HTML", exact=True).click()
    report = waited.value.path().read_text(encoding="utf-8")
    assert "largest gap" not in report
    assert "undefined" not in report.split("<script", 1)[0]
    old["settings"]["limits"] = [1]
    give(page, old)
    page.wait_for_selector(".k-said.k-refused:not(:empty)")


@pytest.mark.parametrize("width", [1440, 390])
def test_nothing_sticks_out(open_page, width):
    page = open_page(FakeBackend(pace=0.1), viewport={"width": width, "height": 900})
    if width < 1100:
        page.click("#rail-toggle button")
    pick(page, "Ragged")
    columns(page, "static_batch", "continuous")
    finish(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    boxes = [box.bounding_box() for box in page.locator(".k-chart:visible").all()]
    assert len(boxes) == 4
    assert len({box["x"] for box in boxes}) == (2 if width > 1100 else 1)
