"""Gradio's theme, tied to the colours of assets/page.css: one palette, light and dark, local fonts."""

from __future__ import annotations

import gradio as gr

# Its semi-bold file in Gradio 6.31 lacks the Latin letters, so 600 falls to the bold one.
_FONT = [gr.themes.LocalFont("IBM Plex Sans", weights=(400, 700)), "ui-sans-serif", "system-ui", "sans-serif"]
_MONO = ["ui-monospace", "monospace"]

# Every colour is a variable of page.css, which holds the light and the dark value.
_SAME_IN_BOTH = {
    "body_background_fill": "var(--k-page)",
    "body_text_color": "var(--k-ink)",
    "body_text_color_subdued": "var(--k-soft)",
    "background_fill_primary": "var(--k-card)",
    "background_fill_secondary": "var(--k-page)",
    "border_color_primary": "var(--k-line)",
    "border_color_accent": "var(--k-accent)",
    "color_accent": "var(--k-accent)",
    "color_accent_soft": "var(--k-accent-soft)",
    "link_text_color": "var(--k-accent)",
    "block_background_fill": "transparent",
    "block_border_color": "transparent",
    "block_label_text_color": "var(--k-soft)",
    "block_title_text_color": "var(--k-soft)",
    "block_info_text_color": "var(--k-faint)",
    "input_background_fill": "var(--k-field)",
    "input_background_fill_focus": "var(--k-field)",
    "input_border_color": "var(--k-line)",
    "input_border_color_focus": "var(--k-accent)",
    "input_placeholder_color": "var(--k-faint)",
    "checkbox_background_color": "var(--k-field)",
    "checkbox_background_color_selected": "var(--k-accent)",
    "checkbox_border_color": "var(--k-strong-line)",
    "checkbox_border_color_selected": "var(--k-accent)",
    "checkbox_border_color_focus": "var(--k-accent)",
    "checkbox_label_background_fill": "transparent",
    "checkbox_label_background_fill_hover": "transparent",
    "checkbox_label_background_fill_selected": "transparent",
    "checkbox_label_border_color": "transparent",
    "checkbox_label_border_color_selected": "transparent",
    "checkbox_label_text_color": "var(--k-ink)",
    "checkbox_label_text_color_selected": "var(--k-ink)",
    "button_primary_background_fill": "var(--k-accent)",
    "button_primary_background_fill_hover": "var(--k-accent-hover)",
    "button_primary_text_color": "var(--k-on-accent)",
    "button_primary_border_color": "var(--k-accent)",
    "button_secondary_background_fill": "var(--k-card)",
    "button_secondary_background_fill_hover": "var(--k-hover)",
    "button_secondary_text_color": "var(--k-ink)",
    "button_secondary_border_color": "var(--k-strong-line)",
    "panel_background_fill": "transparent",
}

_ONCE = {
    "block_border_width": "0px",
    "block_shadow": "none",
    "block_padding": "0px",
    "block_label_text_weight": "600",
    "block_title_text_weight": "600",
    "input_border_width": "1px",
    "input_shadow": "none",
    "input_radius": "8px",
    "input_padding": "7px 10px",
    "checkbox_label_padding": "3px 0",
    "checkbox_label_shadow": "none",
    "layout_gap": "14px",
    "form_gap_width": "0px",
    "button_large_radius": "9px",
    "button_primary_shadow": "none",
    "button_secondary_shadow": "none",
}


def theme() -> gr.themes.Base:
    base = gr.themes.Base(font=_FONT, font_mono=_MONO, text_size="md", radius_size="md")
    dark = {f"{key}_dark": value for key, value in _SAME_IN_BOTH.items() if hasattr(base, f"{key}_dark")}
    return base.set(**_SAME_IN_BOTH, **dark, **_ONCE)
