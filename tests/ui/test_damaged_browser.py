"""Hundreds of damaged runs, given to the page one after another: each is refused in one sentence or is a run
that every view can show; nothing becomes an element, nothing throws, and the page works on."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from page_fake import make_plan
from record_fake import document, give_good

pytestmark = pytest.mark.slow

NASTY = "<img src=x onerror=window.pwned=1><script>window.pwned=1</script>"
DEEP = '{"a":' * 3_000 + "1" + "}" * 3_000
# As JSON texts, since some are no value of Python's.
ODD = (
    "null", "true", "0", "-1", "1.5", "1e999", "-1e999", "NaN", "9007199254740993", '""', '"1"', '"<b>"',
    "[]", "{}", "[[]]", "[null]", '{"length": 3}', '{"__proto__": {"polluted": 1}}', '{"constructor": 1}',
    '"__proto__"', '"toString"', '"\\ud83d"', '"\\u0000"', '"2026-02-31T99:00:00"', '[{"__proto__": null}]',
    DEEP, json.dumps(NASTY), json.dumps("x" * 200_000), json.dumps([0] * 20_000),
)  # fmt: skip
GIVE = """async ([whole, cases]) => {
    const said = document.querySelector(".k-said"), input = document.querySelector(".k-drop input");
    const tabs = [...document.querySelectorAll("[role=tab][id^=tab-]")];
    const found = [];
    for (const [path, json] of cases) {
        const damaged = structuredClone(whole);
        const part = path.slice(0, -1).reduce((value, key) => value[key], damaged);
        part[path.at(-1)] = "HERE";
        const text = JSON.stringify(damaged).replace('"HERE"', () => json);
        document.getElementById("tab-export").click();
        said.textContent = "";
        const files = new DataTransfer();
        files.items.add(new File([text], "run.json"));
        input.files = files.files;
        input.dispatchEvent(new Event("change"));
        for (let turn = 0; !said.textContent && turn < 2000; turn++)
            await new Promise((go) => setTimeout(go));
        const opened = !said.classList.contains("k-refused");
        found.push([opened, said.textContent]);
        if (opened) for (const tab of tabs) tab.click();
    }
    return found;
}"""


def parts(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """The path of every part of a document: of lists, their first item's."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield (*path, key)
            yield from parts(item, (*path, key))
    elif isinstance(value, list) and value:
        yield (*path, 0)
        yield from parts(value[0], (*path, 0))


def test_damaged_runs_are_refused_or_shown_and_never_harm(open_page):
    chance = random.Random(3)
    whole = document(make_plan(("One", "Two two"), ("no_cache", "static_batch"), max_new_tokens=3))
    cases = [(path, chance.choice(ODD)) for path in parts(whole)]
    cases += [(chance.choice(cases)[0], odd) for odd in ODD]
    assert len(cases) > 150
    page = open_page()
    page.wait_for_function("window.Plotly")
    give_good(page, whole)
    page.click("#tab-export")
    elements = page.evaluate("document.querySelectorAll('img, script, iframe, object').length")
    found = page.evaluate(GIVE, [copy.deepcopy(whole), cases])
    refused = [said for opened, said in found if not opened]
    for said in refused:
        assert said.startswith("run.json: "), said
        assert said.endswith("."), said
        assert len(said) < 250, said
        assert "\n" not in said, said
    assert all(said == "run.json is open." for opened, said in found if opened)
    assert len(refused) > len(cases) / 2
    assert page.evaluate("[window.pwned, ({}).polluted]") == [None, None]
    assert page.evaluate("document.querySelectorAll('img, script, iframe, object').length") == elements
    give_good(page, whole)
    page.click("#run")
    page.wait_for_selector("#status[data-state='done']")
