"""The bug lab's button: Run, with a planted fault's two ways instead of those that were picked."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import gradio as gr

from kshipra.errors import InputError
from kshipra.recipes import BUGS
from kshipra.ui.form import Form
from kshipra.ui.view import refusal

Handler = Callable[..., Iterator[tuple[str, str]]]  # (request, *fields) -> (the stage's text, the record)


def with_bug(form: Form, key: Any) -> Form:
    """`form` with the ways of that bug, healthy and broken, both cold; InputError for one there is not."""
    for bug in BUGS:
        if bug.key == key:
            return replace(form, recipes=[bug.healthy.key, bug.broken.key], reuse=False)
    raise InputError(f"Bug lab: {key!r:.40} is not one of {', '.join(bug.key for bug in BUGS)}.")


def planting(run: Handler) -> Handler:
    """`run` for (request, bug, *fields)."""

    def plant(request: gr.Request, bug: Any, *fields: Any) -> Iterator[tuple[str, str]]:
        try:
            form = with_bug(Form(*fields), bug)
        except InputError as error:
            yield refusal(uuid.uuid4().hex, str(error)), ""
            return
        yield from run(request, *vars(form).values())

    return plant
