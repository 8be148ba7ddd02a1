"""Text to ids and back. Decides three rules that hold for every tokenizer:

* what a person types is plain characters: a control token written out in a prompt never becomes one;
* control tokens come from the chat template (or a tokenizer's own start mark) alone;
* a stream of pieces joins to the decoding of all ids: no broken character, nothing taken back.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any

from kshipra.errors import InputError
from kshipra.limits import whole_characters

BROKEN = "\N{REPLACEMENT CHARACTER}"
LONGEST_CHARACTER = 8  # tokens that may hold back text before the window is cut; four bytes make a character
MARK = "\ue000kshipra-{}\ue000"  # private-use characters where the template puts what was said


class Tokenizer:
    """A wrapper of one shape for transformers' tokenizers, or for anything with `encode(text)` and
    `decode(ids)`.

    The wrapped tokenizer is not changed: its padding side, its pad token and its own settings stay as they
    were.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.inner = tokenizer
        # A copy, because refusing control tokens in text is a setting of the whole fast tokenizer.
        fast = getattr(tokenizer, "backend_tokenizer", None)
        self._fast = copy.deepcopy(fast) if fast is not None else None
        if self._fast is not None:
            self._fast.encode_special_tokens = True
            self._fast.no_truncation()
            self._fast.no_padding()

    @property
    def eos_ids(self) -> frozenset[int]:
        named = getattr(self.inner, "eos_token_id", None)
        return frozenset() if named is None else frozenset([named] if isinstance(named, int) else named)

    @property
    def pad_id(self) -> int:
        """What fills the left of a shorter row: the pad token, else an end token, else 0. Nobody reads it."""
        pad = getattr(self.inner, "pad_token_id", None)
        return pad if pad is not None else min(self.eos_ids, default=0)

    @property
    def has_chat_template(self) -> bool:
        return bool(getattr(self.inner, "chat_template", None))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text` as plain characters, behind the start mark where the tokenizer adds one."""
        text = whole_characters(text)
        if self._fast is not None:
            return self._fast.encode(text, add_special_tokens=add_special_tokens).ids
        if hasattr(self.inner, "all_special_ids"):  # one of transformers' tokenizers in Python
            return self.inner.encode(text, add_special_tokens=add_special_tokens, split_special_tokens=True)
        return list(self.inner.encode(text))

    def encode_chat(self, text: str, earlier: Sequence[tuple[str, Sequence[int]]] = ()) -> list[int]:
        """Ids of `text` as the user's turn in the model's chat template, ready for the answer, behind
        `earlier` turns: what was said, and the ids that answered, which stay those ids.

        The template is cut at its control tokens and answers; what lies between them, the person's text
        included, is encoded as plain characters. InputError where the model has no template.
        """
        if not self.has_chat_template:
            raise InputError("This model has no chat template: switch to raw text.")
        turns = [
            {"role": ("user", "assistant")[n % 2], "content": MARK.format(n)}
            for n in range(2 * len(earlier) + 1)
        ]
        written = self.inner.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        said = {MARK.format(2 * n): own for n, own in enumerate([*(own for own, _ in earlier), text])}
        known = {token: [self.inner.convert_tokens_to_ids(token)] for token in self.inner.all_special_tokens}
        known |= {MARK.format(2 * n + 1): list(answer) for n, (_, answer) in enumerate(earlier)}
        said_here = re.compile("|".join(map(re.escape, said)))
        ids: list[int] = []
        for part in re.split(
            "(" + "|".join(map(re.escape, sorted(known, key=len, reverse=True))) + ")", written
        ):
            if part in known:
                ids += known[part]
            elif part:
                plain = said_here.sub(lambda found: said[found[0]], part)
                ids += self.encode(plain, add_special_tokens=False)
        return ids

    def names(self, ids: int) -> dict[int, str]:
        """What every token stands for, or the text of each of the first `ids` where the tokenizer has no
        list."""
        if hasattr(self.inner, "get_vocab"):
            return {id: name for name, id in self.inner.get_vocab().items()}
        return {id: self.decode([id]) for id in range(ids)}

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids` without control tokens and without any tidying of spaces; ids without text are
        silent."""
        if self._fast is not None:
            return self._fast.decode(list(ids), skip_special_tokens=True)
        if hasattr(self.inner, "all_special_ids"):
            return self.inner.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return self.inner.decode(list(ids))


class Detokenizer:
    """Ids one by one to pieces of text, each final: joined they are the decoding of all ids behind
    `prompt_ids`.

    Only a short window is decoded at a time, so the cost of a token does not grow with the text. A piece
    waits while its last character may still be incomplete.
    """

    def __init__(self, tokenizer: Any, prompt_ids: Sequence[int] = ()) -> None:
        self._decode = (tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer(tokenizer)).decode
        self._start_window(list(prompt_ids))

    def push(self, id: int) -> str:
        """The text that became certain with `id`; "" while it may still change."""
        self._window.append(id)
        text = self._text()
        certain = text.rstrip(BROKEN)
        piece = certain[self._shown :]
        self._shown = max(self._shown, len(certain))
        if certain == text:
            self._start_window(self._context + self._window if not text else self._window)
        elif len(self._window) > LONGEST_CHARACTER:
            piece += self._cut_window(text)
        return piece

    def flush(self) -> str:
        """What is still held back, broken characters included. Call once, at the end of the row."""
        piece = self._text()[self._shown :]
        self._start_window(self._window)
        return piece

    def _text(self) -> str:
        return self._decode(self._context + self._window)[len(self._before) :]

    def _start_window(self, context: list[int]) -> None:
        """An empty window behind the last ids of `context`, for spaces that depend on what stands before.

        They begin where a character does: half of one would spoil its neighbours in some tokenizers.
        """
        first = max(0, len(context) - LONGEST_CHARACTER)
        whole = (n for n in range(first, len(context)) if not self._decode(context[n:]).startswith(BROKEN))
        self._context = context[next(whole, first) :]
        self._before = self._decode(self._context)
        self._window: list[int] = []
        self._shown = 0  # characters of the window's text that were handed out

    def _cut_window(self, text: str) -> str:
        """Of many broken bytes, hand out those before a boundary that no later byte can move.

        An unfinished character is at most three bytes, so it stays in the window whole.
        """
        for cut in range(len(self._window) - 3, 0, -1):
            head, tail = self._window[:cut], self._window[cut:]
            settled = self._decode(self._context + head)[len(self._before) :]
            if settled + self._decode(tail) == text:
                piece, shown = settled[self._shown :], max(0, self._shown - len(settled))
                self._start_window([])
                self._window, self._shown = tail, shown
                return piece
        return ""


class StopFilter:
    """Pieces of a stream up to the first of several stop texts, holding back only what may still become
    one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, piece: str) -> str:
        """What of the stream may be shown now. After a stop text was met, `stopped` is True and nothing more
        comes."""
        text = self._held + piece
        found = [place for place in (text.find(stop) for stop in self._stops) if place >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = max((self._overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back for a stop text that never came."""
        text, self._held = self._held, ""
        return text

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """Length of the longest end of `text` that begins `stop`."""
        return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
