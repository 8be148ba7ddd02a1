"""The one form in which the page's script is told something: a line of strict JSON, [kind, ...].

Lines are only ever appended, so the script reads on from where it was and Gradio sends the new end alone.
"""

from __future__ import annotations

import json
from typing import Any

from kshipra.limits import clean_text


def line(*parts: Any) -> str:
    """`parts` as one line. `<` is written as an escape, so that no reader can take a line for markup."""
    text = json.dumps(parts, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return clean_text(text).replace("<", "\\u003c") + "\n"
