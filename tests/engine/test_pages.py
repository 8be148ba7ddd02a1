import random

import torch

from kshipra.engine import pages
from kshipra.engine.pages import HOLE, HUGE, use_huge_pages, whole_pages


def test_pages_lie_within_what_is_given_and_none_is_left_out():
    random.seed(4)
    for _ in range(300):
        spans, at = [], HUGE * 3 + random.randrange(HUGE)
        for _ in range(random.randrange(6)):
            spans.append((at, random.randrange(1, 5 * HUGE)))
            at += spans[-1][1] + random.choice((0, 1, HOLE, HOLE + 1, HUGE))
        joined: list[list[int]] = []
        for start, size in spans:
            if joined and start - joined[-1][1] <= HOLE:
                joined[-1][1] = start + size
            else:
                joined.append([start, start + size])
        expected = [
            page for page in range(0, at + HUGE, HUGE)
            if any(start <= page and page + HUGE <= end for start, end in joined)
        ]  # fmt: skip
        random.shuffle(spans)
        spans += spans[:1]  # tied weights
        assert list(whole_pages(spans)) == expected


def test_gathered_memory_holds_what_it_held():
    tensors = [torch.randn(3 * HUGE // 4 + n) for n in (0, 1, 5)]
    before = [tensor.clone() for tensor in tensors]
    use_huge_pages([*tensors, torch.empty(3, device="meta"), torch.empty(0)])
    assert all(map(torch.equal, tensors, before))


def test_a_refusal_changes_nothing(monkeypatch):
    asked = []

    class Libc:
        @staticmethod
        def madvise(address, size, advice):
            asked.append((address % HUGE, size, advice))
            return -1

    monkeypatch.setattr(pages.ctypes, "CDLL", lambda _: Libc)
    use_huge_pages([torch.zeros(HUGE), torch.zeros(3 * HUGE // 4)])
    assert len(asked) >= 3 + 2
    assert set(asked) == {(0, HUGE, 25)}
