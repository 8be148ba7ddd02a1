"""The load scripts in a short form; `make soak` runs the long one."""

from __future__ import annotations

import cycles
import hostile
import pytest
import visitors

pytestmark = pytest.mark.slow


def test_visitors():
    assert visitors.main(4, 5.0) == 0


def test_cycles():
    assert cycles.main(8) == 0


def test_hostile_inputs():
    assert hostile.main(60) == 0
