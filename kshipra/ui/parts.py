"""The page's own components: a frame of HTML each, its scripts from assets/, and the words it may say."""

from __future__ import annotations

import html

import gradio as gr

from kshipra.backends.lobby import BATCHING
from kshipra.backends.occupancy import WINDOW_S
from kshipra.limits import ANSWER_TOKENS, FILE_BYTES, SAID_CHARS
from kshipra.recipes import LAB_RECIPES, RECIPES, USUAL_KEYS
from kshipra.ui import recorded, words
from kshipra.ui.fields import ASSETS, own
from kshipra.ui.files import plotly_address, recorded_address
from kshipra.ui.shelf import shelf

STAGE_SCRIPTS = ("dom", "frames", "copy", "server", "plotly", "traces", "charts", "columns", "page")
STUDY_SCRIPTS = (
    "dom", "picker", "record", "race", "timeline", "proof_box", "proof_tokens", "proof_lab", "proof",
    "prediction", "check_record", "traces", "figures", "report", "export", "runs", "history", "study",
)  # fmt: skip
EXPERIMENTS_SCRIPTS = ("dom", "picker", "record", "plotly", "plots", "findings", "experiments")
LIVE_SCRIPTS = ("dom", "record", "server", "live_chart", "live_turns", "live")
SUMMARY_ORDER = [[label for label, _ in words.SUMMARY[1:]].index(label) for label in words.SUMMARY_SHOWN]
CHARTS = [dict(zip(("key", "label", "note", "definition"), chart, strict=True)) for chart in words.CHARTS]


def header(first_line: str) -> gr.HTML:
    logo = (ASSETS / "logo.svg").read_text(encoding="utf-8")
    places = (
        f"<nav class='k-places' aria-label='{html.escape(words.PLACES['label'])}'>"
        f"<a href='#'>{html.escape(words.PLACES['bench'])}</a>"
        f"<a href='#experiments'>{html.escape(words.PLACES['experiments'])}</a>"
        f"<a href='#live'>{html.escape(words.PLACES['live'])}</a></nav>"
    )
    frame = (
        "<header class='k-header'><div class='k-brand'>"
        f"{logo}<h1>{html.escape(words.NAME)}</h1><p>{html.escape(words.SENTENCE)}</p></div>"
        f"<div class='k-model'></div>{places}</header>"
    )
    return own("header", frame, "header", value=first_line, words=words.HEADER)


def rail_toggle() -> None:
    own("rail-toggle", "<button type='button' aria-expanded='false'></button>", "rail", words=words.RAIL)


def stage() -> gr.HTML:
    return own(
        "stage",
        "<div class='k-stage'></div>",
        *STAGE_SCRIPTS,
        words=words.PAGE,
        recipes=[
            {
                "key": recipe.key,
                "letter": recipe.letter,
                "label": recipe.label,
                "sentence": recipe.sentence,
                "why": words.WHY.get(recipe.key, ""),
            }
            for recipe in (*RECIPES, *LAB_RECIPES)
        ],
        picked=list(USUAL_KEYS),
        figures=[
            {"key": key, "label": label, "definition": definition, "more": key in words.MORE_FIGURES}
            for key, label, definition in words.FIGURES
        ],
        charts=CHARTS,
        summary=[{"label": label, "definition": text} for label, text in words.SUMMARY],
        summary_order=SUMMARY_ORDER,
        plotly=plotly_address(),
    )


def study() -> gr.HTML:
    return own(
        "study",
        "<div class='k-study'></div>",
        *STUDY_SCRIPTS,
        words=words.STUDY,
        recorded=[
            {"name": name, "address": recorded_address(file)} for file, name in recorded.runs().items()
        ],
        charts=CHARTS,
        summary_heads=[label for label, _ in words.SUMMARY],
        summary_order=SUMMARY_ORDER,
        report_css=(ASSETS / "report.css").read_text(encoding="utf-8"),
    )


def experiments() -> gr.HTML:
    """The page's other part. Its id is not the address's #experiments, to which a browser would scroll."""
    return own(
        "experiments-part",
        "<section class='k-experiments' hidden></section>",
        *EXPERIMENTS_SCRIPTS,
        words=words.EXPERIMENTS,
        shelf=shelf(),
        most_bytes=FILE_BYTES,
        plotly=plotly_address(),
    )


def live() -> gr.HTML:
    """The third part. Its value is what its visitor may see, in lines that `live_view` tells."""
    terms = {"turn_figures": words.LIVE_TURN, "batch_figures": words.LIVE_BATCH}
    return own(
        "live-part",
        "<section class='k-live' hidden></section>",
        *LIVE_SCRIPTS,
        words=words.LIVE,
        places=BATCHING.rows,
        window_s=WINDOW_S,
        most_chars=SAID_CHARS,
        most_tokens=ANSWER_TOKENS,
        **{
            name: [{"label": label, "definition": text} for label, text in each]
            for name, each in terms.items()
        },
    )


def status() -> None:
    frame = (
        "<div class='k-status'><div id='status' role='status' aria-live='polite' data-state='idle'>"
        f"<i aria-hidden='true'></i><span>{html.escape(words.PAGE['idle'])}</span></div>"
        "<div id='live-rate' aria-hidden='true'></div></div>"
    )
    own("status-slot", frame)
