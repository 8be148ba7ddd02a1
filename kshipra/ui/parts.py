"""The page's own components: a frame of HTML each, its script from assets/, and the words that it may say."""

from __future__ import annotations

import html
from importlib import resources
from pathlib import Path

import gradio as gr

from kshipra.recipes import LAB_RECIPES, RECIPE_KEYS, RECIPES
from kshipra.ui import recorded, words
from kshipra.ui.fields import ASSETS, script

PLOTLY = Path(str(resources.files("plotly") / "package_data" / "plotly.min.js"))
# In one scope: those that define come before those that use.
STAGE_SCRIPTS = ("dom", "frames", "charts", "columns", "page")
STUDY_SCRIPTS = (
    "dom", "record", "race", "timeline", "proof_box", "proof_tokens", "proof_lab", "proof", "prediction",
    "check_record", "figures", "report", "export", "runs", "history", "study",
)  # fmt: skip


def _plotly_address() -> str:
    gr.set_static_paths([PLOTLY])
    return f"gradio_api/file={PLOTLY.as_posix()}"


def header(first_line: str) -> gr.HTML:
    logo = (ASSETS / "logo.svg").read_text(encoding="utf-8")
    return gr.HTML(
        first_line,
        elem_id="header",
        html_template="<header class='k-header'><div class='k-brand'>"
        f"{logo}<h1>{html.escape(words.NAME)}</h1><p>{html.escape(words.SENTENCE)}</p></div>"
        "<div class='k-model'></div></header>",
        js_on_load=script("header.js"),
        apply_default_css=False,
        page={"words": words.HEADER},
    )


def stage() -> gr.HTML:
    named = ("key", "label", "definition")
    return gr.HTML(
        "",
        elem_id="stage",
        html_template="<div class='k-stage'></div>",
        js_on_load=script(*(f"{name}.js" for name in STAGE_SCRIPTS)),
        apply_default_css=False,
        page={
            "words": words.PAGE,
            "recipes": [
                {"key": r.key, "letter": r.letter, "label": r.label, "sentence": r.sentence}
                for r in (*RECIPES, *LAB_RECIPES)
            ],
            "picked": list(RECIPE_KEYS),
            "figures": [dict(zip(named, figure, strict=True)) for figure in words.FIGURES],
            "charts": [dict(zip((*named[:2], "note", named[2]), c, strict=True)) for c in words.CHARTS],
            "summary": [{"label": label, "definition": text} for label, text in words.SUMMARY],
            "plotly": _plotly_address(),
        },
    )


def study() -> gr.HTML:
    gr.set_static_paths([recorded.FOLDER])
    return gr.HTML(
        "",
        elem_id="study",
        html_template="<div class='k-study'></div>",
        js_on_load=script(*(f"{name}.js" for name in STUDY_SCRIPTS)),
        apply_default_css=False,
        page={
            "words": words.STUDY,
            "recorded": recorded.runs(),
            "charts": [dict(zip(("key", "label", "note"), chart, strict=False)) for chart in words.CHARTS],
            "summary_heads": [label for label, _ in words.SUMMARY],
            "report_css": (ASSETS / "report.css").read_text(encoding="utf-8"),
        },
    )


def status() -> None:
    gr.HTML(
        "",
        elem_id="status-slot",
        html_template="<div class='k-status'>"
        "<div id='status' role='status' aria-live='polite' data-state='idle'>"
        f"<i aria-hidden='true'></i><span>{html.escape(words.PAGE['idle'])}</span></div>"
        "<div id='live-rate' aria-hidden='true'></div></div>",
        js_on_load=None,
        apply_default_css=False,
    )
