"""Keys and values of earlier texts, kept within a budget of bytes so that a new prompt need not be read from
its start again. Refuses to know requests and modes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from kshipra.engine.cache import KVCache


class PrefixCache:
    """Texts by their scope and ids, each with a KVCache of one row that nobody changes any more; the one that
    was used least lately goes first when `budget_bytes` are full. A text is found in its own scope only."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._texts: OrderedDict[tuple[str, tuple[int, ...]], KVCache] = OrderedDict()

    @property
    def used_bytes(self) -> int:
        return sum(cache.held_bytes for cache in self._texts.values())

    def __len__(self) -> int:
        return len(self._texts)

    def longest(self, ids: Sequence[int], scope: str = "") -> tuple[int, KVCache | None]:
        """How many of the first `ids` some text shares, and its cache; short of the last, whose logits are
        wanted."""
        ids = tuple(ids[:-1])
        found = max(self._of(scope), key=lambda text: shared(text, ids), default=())
        if (length := shared(found, ids)) == 0:
            return 0, None
        self._texts.move_to_end((scope, found))
        return length, self._texts[scope, found]

    def _of(self, scope: str) -> list[tuple[int, ...]]:
        return [text for own, text in self._texts if own == scope]

    def keep(self, ids: Sequence[int], cache: KVCache, scope: str = "") -> None:
        """Keep `cache`, one row with a column for each of `ids`, in the place of all that it goes on from."""
        ids = tuple(ids)
        for text in self._of(scope):
            if text == ids[: len(text)]:
                del self._texts[scope, text]
        if any(text[: len(ids)] == ids for text in self._of(scope)) or cache.held_bytes > self.budget_bytes:
            return
        self._texts[scope, ids] = cache
        while self.used_bytes > self.budget_bytes:
            self._texts.popitem(last=False)

    def copied(self) -> PrefixCache:
        """The same texts, to which others are added without this one's knowledge."""
        other = PrefixCache(self.budget_bytes)
        other._texts = self._texts.copy()
        return other

    def clear(self) -> None:
        self._texts.clear()


def shared(first: Sequence[int], second: Sequence[int]) -> int:
    """How many ids two texts have in common from their start."""
    return next(
        (place for place, (one, other) in enumerate(zip(first, second, strict=False)) if one != other),
        min(len(first), len(second)),
    )
