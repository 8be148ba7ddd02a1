"""The left rail: what a person fills in before Run. Its components are in the order of `Form`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.components import Component

from kshipra.limits import Limits
from kshipra.models.catalogue import NAMES
from kshipra.modes import server as server_mode
from kshipra.recipes import BUGS, RECIPES, USUAL_KEYS, recipe_named
from kshipra.types import DTYPES, DeviceChoice, ModelChoice
from kshipra.ui import show, words

ASSETS = Path(__file__).parents[2] / "assets"
ROWS = 4  # at once: so few that some of a ragged list of prompts have to wait


def script(*names: str) -> str:
    """The scripts of assets/ as one, in one scope: those that define come before those that use."""
    return "\n".join((ASSETS / f"{name}.js").read_text(encoding="utf-8") for name in names)


def own(elem_id: str, frame: str, *scripts: str, value: Any = "", **page: Any) -> gr.HTML:
    """A component of our own: its frame of HTML, which never changes, the scripts that fill it in, and what
    they find as `props.page`."""
    return gr.HTML(
        value,
        elem_id=elem_id,
        html_template=frame,
        js_on_load=script(*scripts) if scripts else None,
        apply_default_css=False,
        page=page,
    )


def presets() -> list[dict[str, Any]]:
    """name, prompts as a form has them, and `ways`, the recipes that they are about, where they are."""
    return json.loads((ASSETS / "presets.json").read_text(encoding="utf-8"))


def preset_script() -> str:
    """What picking a preset ticks: (prompts, recipes) -> recipes."""
    ways = json.dumps([[preset["prompts"], preset["ways"]] for preset in presets() if "ways" in preset])
    return (
        "(prompts, recipes) => "
        f"[{ways}.find(([own]) => JSON.stringify(own) === JSON.stringify(prompts))?.[1] ?? recipes]"
    )


def _prompts(most: int) -> gr.HTML:
    known = presets()
    return own(
        "prompts",
        "<div class='k-prompts'></div>",
        "prompts",
        value=known[0]["prompts"],
        words=words.PROMPTS,
        presets=known,
        most=most,
    )


def _device(devices: tuple[DeviceChoice, ...], default: str) -> gr.Dropdown:
    usable = [(device.label, device.name) for device in devices if device.unavailable is None]
    reasons = {device.name: device.unavailable for device in devices if device.unavailable}
    missing = [f"{name} is not available: {reason.rstrip('.')}." for name, reason in reasons.items()]
    return gr.Dropdown(
        [("auto", "auto"), *usable],
        value=default if default in {name for _, name in usable} else "auto",
        label="Device",
        info=" ".join(missing) or None,
        elem_id="device",
    )


def _ways_info(unavailable: dict[str, str]) -> str | None:
    """Which ways cannot run here, those of one reason in one sentence."""
    reasons = dict.fromkeys(unavailable.values())
    letters = {
        reason: [recipe.letter for recipe in RECIPES if unavailable.get(recipe.key) == reason]
        for reason in reasons
    }
    return (
        " ".join(words.NOT_HERE.format(ways=show.listing(letters[why]), why=why) for why in reasons) or None
    )


def rail(
    choice: ModelChoice, devices: tuple[DeviceChoice, ...], unavailable: dict[str, str], limits: Limits
) -> tuple[list[Component], gr.HTML, gr.HTML, gr.Button]:
    """Build the rail in the current context: what Run posts, what it takes of memory, what is said of kept
    texts, the button that drops them."""
    prompts = _prompts(limits.prompts)
    recipes = gr.CheckboxGroup(
        [(f"{recipe.letter} {recipe.label}", recipe.key) for recipe in RECIPES],
        value=list(USUAL_KEYS),
        label="Ways to compare",
        info=_ways_info(unavailable),
        elem_id="recipes",
    )
    model = gr.Dropdown(
        list(NAMES) if choice.model in NAMES else [choice.model, *NAMES],
        value=choice.model,
        allow_custom_value=not limits.public,
        label="Model",
        info=words.MODEL_INFO["public" if limits.public else "own"],
        elem_id="model",
    )
    device = _device(devices, choice.device)
    dtype = gr.Dropdown(["auto", *DTYPES], value=choice.dtype, label="Precision", elem_id="dtype")
    with gr.Row(elem_classes="k-pair"):
        most = gr.Number(24, label="Max new tokens", info=words.MOST["info"], elem_id="max-new-tokens")
        rows = gr.Number(ROWS, label=words.ROWS["label"], info=words.ROWS["info"], elem_id="rows")
    estimate = own("estimate", "<p class='k-estimate' role='status'></p>", "estimate")
    chat = gr.Radio(
        [("raw text", "raw"), ("chat template", "chat")],
        value="raw",
        label="Prompts are sent as",
        elem_id="chat",
    )
    with gr.Accordion("Sampling", open=False, elem_id="sampling"):
        with gr.Row(elem_classes="k-pair"):
            temperature = gr.Number(
                0, step=0.1, label="Temperature", info="0 is greedy", elem_id="temperature"
            )
            seed = gr.Textbox("", max_lines=1, label="Seed", info="blank draws one", elem_id="seed")
        with gr.Row(elem_classes="k-pair"):
            top_k = gr.Number(0, label="Top-k", info="0 is off", elem_id="top-k")
            top_p = gr.Number(1, step=0.05, label="Top-p", info="1 is off", elem_id="top-p")
        penalty = gr.Number(
            1, step=0.05, label="Repetition penalty", info="1 is off", elem_id="repetition-penalty"
        )
    with gr.Accordion(words.REUSE["title"], open=False, visible=not limits.public, elem_id="reuse-part"):
        reuse = gr.Checkbox(False, label=words.REUSE["label"], info=words.REUSE["info"], elem_id="reuse")
        with gr.Row(elem_classes="k-kept"):
            kept = gr.HTML(words.REUSE["nothing"], elem_id="kept", apply_default_css=False)
            clear = gr.Button(words.REUSE["clear"], size="sm", elem_id="clear-kept")
    with gr.Accordion(words.DRAFT["title"], open=False, elem_id="draft-part"):
        draft = gr.Dropdown(
            ["", *NAMES],
            value="",
            allow_custom_value=not limits.public,
            label=words.DRAFT["title"],
            info=words.DRAFT["info"].format(letter=recipe_named("draft_model").letter),
            elem_id="draft",
        )
    sampling = [temperature, top_k, top_p, penalty, seed]
    fields = [prompts, recipes, model, device, dtype, chat, most, *sampling, rows, reuse, draft]
    return [*fields, *_server(recipes, limits)], estimate, kept, clear


def _server(recipes: gr.CheckboxGroup, limits: Limits) -> list[gr.Textbox]:
    """Address, model and key of a server, out of sight until the way that asks one is picked."""
    said, key = words.SERVER, server_mode.MODE.name
    info = said["addressInfoPublic" if limits.public else "addressInfo"].format(
        letter=recipe_named(key).letter
    )
    with gr.Accordion(said["title"], open=True, visible=False, elem_id="server-part") as part:
        address = gr.Textbox("", max_lines=1, label=said["address"], info=info, elem_id="server")
        model = gr.Textbox("", max_lines=1, label=said["model"], elem_id="server-model")
        secret = gr.Textbox(
            "",
            max_lines=1,
            type="password",
            label=said["key"],
            info=said["keyInfo"],
            elem_id="server-key",
            html_attributes=gr.InputHTMLAttributes(autocomplete="new-password", spellcheck=False),
        )
    shown = f'(picked) => ({{ __type__: "update", visible: (picked ?? []).includes("{key}") }})'
    recipes.change(None, recipes, part, js=shown, api_visibility="private")
    return [address, model, secret]


def lab() -> tuple[gr.Radio, gr.HTML, gr.Button]:
    """Build the bug lab in the current context: which fault, its sentence, the button that plants it."""
    with gr.Accordion(words.LAB["title"], open=False, elem_id="lab"):
        bug = gr.Radio(
            [(bug.label, bug.key) for bug in BUGS],
            value=BUGS[0].key,
            label=words.LAB["bug"],
            info=words.LAB["info"],
            elem_id="bug",
        )
        sentence = own(
            "bug-sentence",
            "<p class='k-bug-sentence' aria-live='polite'></p>",
            "lab",
            value=BUGS[0].key,
            sentences={bug.key: bug.sentence for bug in BUGS},
        )
        plant = gr.Button(words.LAB["plant"], elem_id="plant")
    return bug, sentence, plant
