"""The shape of a model that is not loaded, and perhaps not even here: none of its weights is touched."""

from __future__ import annotations

import dataclasses

import torch

from kshipra.models import catalogue
from kshipra.models.shapes import config_of, describe
from kshipra.models.sources import here, read_config, repository, stored_parameters
from kshipra.types import ModelSpec


def shape_of(name: str, dtype: torch.dtype) -> ModelSpec:
    """Of a catalogue name, a folder, a .gguf file, a Hub id or a Hub address; the Hub is asked for its list
    of files and the config. Raises ModelError with one sentence for what is no model that Kshipra can run."""
    label, config, parameters = _known(name.strip())
    spec = describe(config_of(config, label), label, dtype)
    return dataclasses.replace(spec, parameters=parameters)


def _known(name: str) -> tuple[str, dict, int]:
    """Label, values of the config and number of weights."""
    if (entry := catalogue.find(name)) is not None:
        return entry.name, dict(entry.config), entry.parameters
    if (source := here(name)) is None:
        from kshipra.models.hub import listed

        repo = repository(name)
        return repo, *listed(repo)
    if source.folder is not None:
        return source.label, read_config(source.folder), stored_parameters(source.folder)
    from kshipra.models.gguf_file import shape_of_gguf

    assert source.gguf is not None
    return source.label, *shape_of_gguf(source.gguf)
