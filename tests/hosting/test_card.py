"""The card that heads README.md: what the Hub's rules for Spaces ask, and what this repository really has."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from kshipra.models import catalogue
from kshipra.models.sources import HUB_ID
from kshipra.ui import words
from serving import ROOT

COLOURS = {"red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray"}
KNOWN = {  # of the Hub's reference, those that a Gradio Space may have
    "title", "emoji", "colorFrom", "colorTo", "sdk", "sdk_version", "python_version", "app_file", "header",
    "fullWidth", "short_description", "models", "datasets", "tags", "thumbnail", "pinned", "license",
    "disable_embedding", "startup_duration_timeout", "custom_headers", "preload_from_hub", "base_path",
    "suggested_hardware",
}  # fmt: skip


@pytest.fixture(scope="module")
def card() -> dict[str, Any]:
    _, head, _ = (ROOT / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(head)


@pytest.fixture(scope="module")
def required() -> dict[str, Requirement]:
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    return {each.name: each for each in map(Requirement, filter(None, lines))}


def test_the_card_has_what_the_hub_knows_and_within_its_limits(card):
    assert set(card) <= KNOWN
    assert card["title"] == words.NAME
    assert {card["colorFrom"], card["colorTo"]} <= COLOURS
    assert len(card["emoji"]) == 1
    assert ord(card["emoji"]) > 0x2000
    assert 10 <= len(card["short_description"]) <= 60
    assert card["header"] in ("mini", "default")
    assert card["license"] == "apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text()[:300]
    assert all(re.fullmatch(r"[a-z0-9-]+", tag) for tag in card["tags"])


def test_it_starts_what_is_here_with_versions_that_are_allowed_here(card, required):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (ROOT / card["app_file"]).is_file()
    assert card["sdk"] == "gradio"
    assert isinstance(card["python_version"], str)  # 3.10 unquoted is 3.1
    assert SpecifierSet(project["requires-python"]).contains(card["python_version"])
    assert required["gradio"].specifier.contains(card["sdk_version"])


def test_its_models_are_the_catalogues(card):
    named = {entry.hub_id for entry in catalogue.ENTRIES if entry.hub_id}
    assert named < set(card["models"])
    assert all(HUB_ID.fullmatch(model) for model in card["models"])


def test_the_requirements_leave_the_platform_its_own(required):
    """A Space installs these itself, in versions of its own; only gradio is here too, for other machines."""
    assert not {"spaces", "huggingface-hub", "huggingface_hub"} & set(required)
    assert all(each.specifier and "==" not in str(each.specifier) for each in required.values())
    assert all(each.url is None for each in required.values())
