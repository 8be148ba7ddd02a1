"""A run taken away as files and opened again, in a real browser: every file exact, hostile ones refused."""

from __future__ import annotations

import copy
import csv
import io
import json
import re
from pathlib import Path

import pytest
from page_fake import CHOICE, FakeBackend, make_plan
from record_fake import give, give_good

from kshipra.ui.fields import ASSETS
from kshipra.ui.record import Recording, to_json

pytestmark = pytest.mark.slow

NASTY = "<img src=x onerror=window.pwned=1></script><script>window.pwned=1</script>"
NAME = r"kshipra-SmolLM2-135M-Instruct-\d{8}-\d{6}"


def document(**params) -> dict:
    """A whole run's document, made without a browser."""
    plan = make_plan(**params)
    run, recording = FakeBackend(pace=0.001).submit(plan), Recording(plan)
    run.over.wait(60)
    for message in run.messages(1):
        recording.add(message)
    return json.loads(to_json(recording.document()))


@pytest.fixture(scope="module")
def whole() -> dict:
    return document()


@pytest.fixture
def changed(whole):
    def change(*path_and_value) -> dict:
        """A copy of the document with one part replaced: a path of keys and places, then the new part."""
        *path, last, value = path_and_value
        copied = copy.deepcopy(whole)
        part = copied
        for key in path:
            part = part[key]
        part[last] = value
        return copied

    return change


def download(page, label: str, tmp_path: Path) -> tuple[str, Path]:
    """Press the button with that (accessible) name; the file's name and where it lies."""
    page.click("#tab-export")
    page.evaluate("document.querySelector('.k-said').textContent = ''")
    with page.expect_download() as waited:
        page.get_by_role("button", name=label, exact=True).click()
    page.wait_for_selector(".k-said:not(:empty)")
    target = tmp_path / waited.value.suggested_filename
    waited.value.save_as(target)
    assert page.inner_text(".k-said") == f"Saved as {target.name}."
    return target.name, target


def refusal(page, content: dict | str | bytes, name: str = "run.json") -> str:
    give(page, content, name)
    page.wait_for_selector(".k-said.k-refused:not(:empty)")
    assert page.get_attribute("#tab-export", "aria-selected") == "true"
    text = page.inner_text(".k-said")
    page.evaluate("document.querySelector('.k-said').textContent = ''")
    return text


# Files out


def test_the_json_is_the_document_and_opens_again(open_page, tmp_path, monkeypatch):
    records = []
    monkeypatch.setattr(
        "kshipra.ui.handlers.to_json", lambda found: records.append(to_json(found)) or records[-1]
    )
    page = open_page()
    page.click("#run")
    page.wait_for_selector(".k-study.k-filled")
    name, path = download(page, "JSON", tmp_path)
    assert re.fullmatch(NAME + r"\.json", name)
    (sent,) = records
    assert json.loads(path.read_bytes()) == json.loads(sent)
    other = open_page()
    give_good(other, path.read_text(encoding="utf-8"))
    assert other.evaluate("document.activeElement.id") == "tab-race"
    again = download(other, "JSON", tmp_path)[1]
    assert json.loads(again.read_bytes()) == json.loads(sent)
    assert other.evaluate("localStorage.getItem('kshipra-runs')") is None  # a file is no run of this browser


def test_the_csv_has_a_line_a_step_and_no_formula(open_page, tmp_path, changed):
    shown = changed("ways", 1, "label", '=HYPERLINK("http://evil.example","a,b")')
    shown["ways"][0]["result"]["steps"][2]["peak_extra_bytes"] = None
    page = open_page()
    give_good(page, shown)
    name, path = download(page, "CSV", tmp_path)
    assert re.fullmatch(NAME + r"-steps\.csv", name)
    raw = path.read_bytes().decode()
    assert raw.count("\r\n") == raw.count("\n") == 1 + 24 + 24 + 8
    lines = list(csv.DictReader(io.StringIO(raw, newline="")))
    steps = [(way["label"], step) for way in shown["ways"] for step in way["result"]["steps"]]
    assert len(lines) == len(steps)
    for line, (label, step) in zip(lines, steps, strict=True):
        assert line["way"] == (f"'{label}" if label.startswith("=") else label)
        assert line["phase"] == step["phase"]
        assert line["rows"].split() == [str(row) for row in step["rows"]]
        assert int(line["new_tokens"]) == len(step["new_tokens"])
        for name in set(line) - {"way", "phase", "rows", "new_tokens"}:
            assert line[name] == "" if step[name] is None else float(line[name]) == step[name]
    assert list(lines[0]) == [
        "way", "index", "phase", "rows", "processed_tokens", "pad_tokens", "new_tokens", "elapsed_s", "at_s",
        "kv_bytes", "kv_held_bytes", "resident_bytes", "peak_extra_bytes", "flops", "reused_tokens",
        "drafted_tokens",
    ]  # fmt: skip


@pytest.mark.parametrize("chart", ["Step latency", "Throughput", "Memory", "Rows"])
def test_each_chart_is_a_png_and_an_svg_in_light_colours(open_page, tmp_path, changed, chart):
    page = open_page(color_scheme="dark")
    page.wait_for_function("window.Plotly")
    give_good(page, changed("ways", 0, "label", NASTY))
    name, path = download(page, f"{chart} as PNG", tmp_path)
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert int.from_bytes(path.read_bytes()[16:20]) == 2 * 960
    name, path = download(page, f"{chart} as SVG", tmp_path)
    assert re.fullmatch(NAME + r"-(latency|throughput|memory|rows)\.svg", name)
    svg = path.read_text(encoding="utf-8")
    assert "rgb(255, 255, 255)" in svg  # paper
    assert "rgb(213, 94, 0)" in svg  # A, as on a light page
    assert chart in svg
    assert "<img" not in svg
    assert "<script" not in svg


def test_the_charts_points_are_those_of_the_run(open_page, changed, whole):
    page = open_page()
    page.wait_for_function("window.Plotly")
    give_good(page, whole)
    page.evaluate(
        "() => { window.drawn = []; const real = Plotly.toImage;"
        " Plotly.toImage = (figure, ...rest) => { drawn.push(figure); return real(figure, ...rest); }; }"
    )
    page.click("#tab-export")
    with page.expect_download():
        page.get_by_role("button", name="HTML", exact=True).click()
    figures = page.evaluate("drawn.map(({ data }) => data.filter(({ mode }) => mode === 'lines'))")
    latency, throughput, memory, rows = figures
    for place, way in enumerate(whole["ways"]):
        steps, mib = way["result"]["steps"], 2**20
        assert latency[place]["x"] == list(range(1, len(steps) + 1))
        assert latency[place]["y"] == pytest.approx([1000 * step["elapsed_s"] for step in steps])
        window = steps[-8:]
        since = steps[-9]["at_s"] if len(steps) > 8 else 0
        made = sum(len(step["new_tokens"]) for step in window)
        assert throughput[place]["y"][-1] == pytest.approx(made / (steps[-1]["at_s"] - since))
        decode = [step for step in steps if step["phase"] == "decode"]
        assert rows[place]["x"] == [step["at_s"] for step in decode]
        assert rows[place]["y"] == [len(step["rows"]) for step in decode]
        resident, kv = memory[2 * place : 2 * place + 2]
        first = steps[0]["resident_bytes"]
        assert resident["y"] == pytest.approx([(step["resident_bytes"] - first) / mib for step in steps])
        assert kv["y"] == pytest.approx([step["kv_bytes"] / mib for step in steps])
        assert kv["yaxis"] == "y2"


def test_the_report_opens_offline_shows_everything_literally_and_opens_again(
    open_page, chromium, tmp_path, changed
):
    shown = changed("settings", "prompts", 0, NASTY)
    shown["model"]["spec"]["name"] = "SmolLM2-135M-Instruct" + NASTY
    shown["ways"][0]["label"] = shown["ways"][0]["result"]["rows"][0]["text"] = NASTY
    shown["comparisons"][0]["sentence"] = shown["machine"]["processor"] = NASTY
    page = open_page()
    page.wait_for_function("window.Plotly")
    give_good(page, shown)
    _, path = download(page, "HTML", tmp_path)
    assert "kshipra-SmolLM2-135M-Instruct-img-src-x-onerror" in path.name

    said, asked = [], []
    context = chromium.new_context(offline=True, color_scheme="dark", viewport={"width": 390, "height": 800})
    tab = context.new_page()
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(path.as_uri())
    assert said == []
    assert asked == [path.as_uri()]
    assert tab.evaluate("window.pwned") is None
    assert tab.locator("img, iframe, link, script:not([type='application/json'])").count() == 0
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    assert NASTY in tab.title()
    text = tab.inner_text("main")
    for expected in (
        shown["summary"]["headline"], *shown["summary"]["verdict"], *shown["summary"]["rows"][1][2],
        *shown["settings"]["prompts"], *(found["sentence"] for found in shown["comparisons"]),
        *(way["prediction"]["sentence"] for way in shown["ways"]), *map(str, shown["versions"].values()),
        *(row["text"].strip() for way in shown["ways"] for row in way["result"]["rows"]), "513 MiB", NASTY,
        "end to end", "step p99", "up to 8 new tokens", "length reached",
    ):  # fmt: skip
        assert expected in text
    assert tab.locator("figure svg").count() == 4
    assert tab.locator("figure svg >> text=Step latency").count() >= 1
    ink = "getComputedStyle(document.querySelector('figure path.js-line')).stroke"
    assert tab.evaluate(ink) == "rgb(255, 138, 61)"  # A, as on a dark page
    context.close()

    html = path.read_text(encoding="utf-8")
    assert re.findall(r"""(?:href|src)=["'](?!#)""", html) == []
    give_good(page, html, "report.html")
    assert json.loads(download(page, "JSON", tmp_path)[1].read_bytes()) == shown


def test_stopped_and_empty_ways_and_five_of_them_are_exported(open_page, tmp_path, whole):
    shown = copy.deepcopy(whole)
    first = shown["ways"][0]
    first["ended"], first["prediction"] = "stopped", None
    first["result"] |= {"steps": [], "new_tokens": 0, "ttft_s": None, "peak_extra_bytes": None}
    for row in first["result"]["rows"]:
        row |= {"text": "", "token_ids": [], "new_tokens": 0, "ttft_s": None}
    shown["ways"] += [
        copy.deepcopy(shown["ways"][2]) | {"key": f"more-{letter.lower()}", "letter": letter}
        for letter in "DX"
    ]
    shown["comparisons"] = []
    page = open_page()
    page.wait_for_function("window.Plotly")
    give_good(page, shown)
    assert download(page, "Throughput as SVG", tmp_path)[1].read_text().count('class="js-line"') >= 4
    html = download(page, "HTML", tmp_path)[1].read_text(encoding="utf-8")
    assert "(no text)" in html
    page.click("#tab-history")
    assert page.evaluate("document.documentElement.scrollWidth") <= 1440
    one = {**shown, "ways": shown["ways"][:1], "summary": {**shown["summary"], "rows": []}}
    give_good(page, one)
    download(page, "HTML", tmp_path)


def test_the_reports_colours_are_the_pages():
    def colours(text: str, selectors: str) -> dict[str, str]:
        blocks = re.findall(rf"^\s*(?:{selectors}) \{{(.*?)\}}", text, re.S | re.M)
        return dict(re.findall(r"--k-([\w-]+): (#\w+)", " ".join(blocks)))

    page = (ASSETS / "page.css").read_text(encoding="utf-8")
    report = (ASSETS / "report.css").read_text(encoding="utf-8")
    light, dark = report.split("@media screen")
    page_light = colours(page, r":root, .gradio-container|body")
    page_dark = colours(page, r"\.dark, \.dark \.gradio-container|body\.dark")
    assert colours(light, ":root").items() <= page_light.items()
    assert colours(dark, ":root").items() <= page_dark.items()
    assert len(colours(light, ":root")) == len(colours(dark, ":root")) == 20


# Files in


def test_a_file_opens_before_any_run_and_a_dropped_one_too(open_page, whole):
    page = open_page()
    assert page.locator(".k-files").is_hidden()
    page.click("#tab-export")
    assert "Files are read in this browser and sent nowhere." in page.inner_text(".k-export")
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.evaluate(
        "(text) => { const data = new DataTransfer(); data.items.add(new File([text], 'run.json'));"
        " const drop = document.querySelector('.k-drop');"
        " for (const kind of ['dragover', 'drop'])"
        "   drop.dispatchEvent(new DragEvent(kind, { dataTransfer: data, cancelable: true })); }",
        json.dumps(whole),
    )
    page.wait_for_selector("#tab-race[aria-selected='true']")
    assert "SmolLM2-135M-Instruct" in page.inner_text(".k-study-caption")
    assert [url for url in asked if not url.startswith(("data:", "blob:"))] == []
    page.click("#tab-export")
    assert page.inner_text(".k-said") == "run.json is open."


def test_what_is_no_run_is_refused_in_one_sentence_and_the_run_shown_stays(open_page, whole, changed):
    page = open_page()
    give_good(page, whole)
    cut = json.dumps(whole)[:-40]
    assert refusal(page, cut) == "run.json: this is not JSON, or it is cut off."
    assert refusal(page, b"") == "run.json: this is not JSON, or it is cut off."
    assert refusal(page, b"\x89PNG\r\n") == "run.json: this is not JSON, or it is cut off."
    for other in ("null", "[]", '"text"', "17", "{}", '{"format": "another"}'):
        assert refusal(page, other) == "run.json: this is JSON, but not a run of Kshipra."
    assert "holds no run" in refusal(page, "<!doctype html><p>hello", "page.html")
    assert refusal(page, f"<script type='application/json' id='kshipra-run'>{cut}</script>", "r.html") == (
        "r.html: this is not JSON, or it is cut off."
    )
    assert refusal(page, changed("version", 2)) == (
        "run.json: a newer Kshipra wrote it (format 2, and this one reads 1): update Kshipra."
    )
    page.evaluate(
        "() => { const data = new DataTransfer(); data.items.add(new File([new Uint8Array(64 * 2 ** 20 + 1)],"
        " 'big.json')); document.querySelector('.k-drop').dispatchEvent("
        "new DragEvent('drop', { dataTransfer: data, cancelable: true })); }"
    )
    page.wait_for_function("document.querySelector('.k-said').textContent.startsWith('big.json is larger')")
    assert refusal(page, "{}", NASTY).startswith(NASTY)
    assert page.evaluate("window.pwned") is None
    assert page.inner_text(".k-study-caption").startswith("SmolLM2-135M-Instruct on ")


STEP = ("ways", 0, "result", "steps", 1)
DAMAGED = [
    (("ways", {}), "ways must be a list of a sensible length"),
    (("ways", []), "ways must be a list of a sensible length"),
    (("ways", 0, None), "ways[0] must be an object with named parts"),
    (("ways", 0, "key", "constructor"), "ways[0].key must be a short name"),
    (("ways", 0, "letter", "ab"), "ways[0].letter must be a capital letter"),
    (("ways", 1, "key", "no_cache"), "ways must be about ways of this run"),
    (("ways", 1, "letter", "A"), "ways must be about ways of this run"),
    (("ways", 0, "ended", "maybe"), "ways[0].ended must be one of the words"),
    (("ways", 0, "label", ["x"]), "ways[0].label must be a text"),
    (("ways", 0, "prompt_ids", [[1]]), "ways[0].prompt_ids must be about the prompts"),
    (("ways", 0, "result", "steps", None), "ways[0].result.steps must be a list"),
    (("ways", 0, "result", "rows", []), "ways[0].result.rows must be a list"),
    (("ways", 0, "result", "wall_s", 0), "ways[0].result.wall_s must be in the order of time"),
    (
        ("ways", 0, "result", "step_latency_s", "p50", "1"),
        "ways[0].result.step_latency_s.p50 must be a number",
    ),
    (("ways", 0, "prediction", "bound", "luck"), "ways[0].prediction.bound must be one of the words"),
    ((*STEP, "at_s", 1e300), "ways[0].result.steps[1].at_s must be a number"),
    ((*STEP, "at_s", 0), "ways[0].result.steps[1].at_s must be in the order of time"),
    ((*STEP, "elapsed_s", -1), "ways[0].result.steps[1].elapsed_s must be a number"),
    ((*STEP, "index", 7), "ways[0].result.steps[1].index must be in the order of time"),
    ((*STEP, "rows", [3]), "ways[0].result.steps[1].rows must be about the prompts"),
    ((*STEP, "new_tokens", 0, "row", 2), "ways[0].result.steps[1].new_tokens must be about the prompts"),
    ((*STEP, "new_tokens", 0, "id", 3), "ways[0].result.rows[0].token_ids must be about the tokens"),
    ((*STEP, "new_tokens", 0, "text", {"a": 1}), "ways[0].result.steps[1].new_tokens[0].text must be a text"),
    ((*STEP, "new_tokens", 0, "best", [[1]]), "ways[0].result.steps[1].new_tokens[0].best[0] must be a list"),
    (("comparisons", 0, "first", "nobody"), "comparisons[0] must be about ways of this run"),
    (("comparisons", 0, "verdict", "fault"), "comparisons[0].position must be about the tokens"),
    (("settings", "prompts", ["a"] * 17), "settings.prompts must be a list"),
    (("settings", "prompts", ["a"]), "ways[0].prompt_ids must be about the prompts"),
    (("settings", "params", "stop", [1]), "settings.params.stop[0] must be a text"),
    (("settings", "limits", ["a"]), "settings.limits[0] must be a whole number"),
    (("settings", "limits", [1]), "settings.limits must be about the prompts"),
    (("ways", 0, "spec", 5), "ways[0].spec must be an object"),
    (("ways", 0, "execution", {}), "ways[0].execution must be a text"),
    (("machine", "caches", ["48K"]), "machine.caches must be an object"),
    (("machine", "quota_cores", "2"), "machine.quota_cores must be a whole number"),
    (("model", "spec", "stored_bytes", -1), "model.spec.stored_bytes must be a whole number"),
    (("settings", "params", "seed", 2**53), "settings.params.seed must be a whole number"),
    (("settings", "params", "top_k", 0.5), "settings.params.top_k must be a whole number"),
    (("settings", "reuse", 1), "settings.reuse must be true or false"),
    ((*STEP, "drafted_tokens", -1), "ways[0].result.steps[1].drafted_tokens must be a whole number"),
    (("texts", "4", 4), "texts.4 must be a text"),
    (("checks", {"no_cache": "all"}), "checks.no_cache must be a list"),
    (("bug", "none"), "bug must be an object"),
    (("summary", "rows", 0, ["no_cache", ""]), "summary.rows[0] must be a list"),
    (("summary", "rows", 0, 0, "toString"), "summary.rows[0][0] must be a short name"),
    (("summary", "rows", 0, 0, "nobody"), "summary.rows[0] must be about ways of this run"),
    (("taken_at", "yesterday"), "taken_at must be a date"),
    (("model", "spec", "layers", 1.5), "model.spec.layers must be a whole number"),
    (("versions", "torch", 2), "versions.torch must be a text"),
    (("machine", None), "machine must be an object"),
    (("version", "1"), "version must be a number"),
]


def test_a_damaged_run_is_refused_with_the_place_that_is_wrong(open_page, changed):
    page = open_page()
    for change, expected in DAMAGED:
        said = refusal(page, changed(*change))
        assert said.startswith(f"run.json: the run is damaged: {expected}"), change
        assert said.endswith(".")
    deep = json.dumps(changed("checks", "HERE")).replace('"HERE"', '{"a":' * 5000 + "1" + "}" * 5000)
    assert "less deeply nested" in refusal(page, deep)
    infinite = json.dumps(changed(*STEP, "elapsed_s", 12345)).replace("12345", "1e999")
    assert "elapsed_s must be a number" in refusal(page, infinite)
    assert page.locator(".k-files").is_hidden()  # nothing was opened


LATER = [  # of a way's result, what older documents lack
    *((name,) for name in ("largest_gap_s", "reused_tokens", "drafted_tokens", "accepted_tokens", "draft_s")),
    *(("rows", 0, name) for name in ("drafted_tokens", "accepted_tokens")),
    *(("steps", 0, name) for name in ("reused_tokens", "drafted_tokens", "row_drafted_tokens", "draft_s")),
    *(("steps", 0, "new_tokens", 0, name) for name in ("guessed", "count")),
]


def test_every_part_is_needed(open_page, whole):
    """Without any one of its parts a document is refused: no view meets `undefined`."""
    page = open_page()

    def parts(value, path=()):
        if isinstance(value, dict):
            for key in value:
                yield (*path, key)
                yield from parts(value[key], (*path, key))
        elif isinstance(value, list) and value:
            yield from parts(value[0], (*path, 0))

    free = {("versions",), ("texts",), ("checks",)}  # tables: any name may be there or not
    later = [("ways", 0, name) for name in ("spec", "execution", "server_model")]
    later += [("comparisons", 0, "other_weights")]
    later += [("machine", name) for name in ("threads", "quota_cores", "caches")]
    later += [("model", "spec", name) for name in ("weights", "stored_bytes", "pass_weight_bytes")]
    later += [("settings", name) for name in ("limits", "rows", "reuse", "server")]
    later += [("settings", "choice", "draft")]
    later += [("ways", 0, "result", *names) for names in LATER]
    for path in parts(whole):
        if path[:-1] in free or any(path[: len(one)] == one for one in later):  # older documents lack those
            continue
        broken = copy.deepcopy(whole)
        part = broken
        for key in path[:-1]:
            part = part[key]
        del part[path[-1]]
        said = refusal(page, broken)
        assert "the run is damaged" in said or path == ("format",), path


def test_the_plan_of_the_documents_here_is_the_pages(whole):
    assert whole["settings"]["choice"]["model"] == CHOICE.model
