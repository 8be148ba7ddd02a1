"""A loaded engine in another way: what recipes of one plan run on."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn

from kshipra.engine import runner
from kshipra.engine.compiled import compiled, require_compiled
from kshipra.engine.stepped import StepModel
from kshipra.models.hf import TransformersModel
from kshipra.models.loading import wrap_model
from kshipra.models.weights import inner, is_stored, shell
from kshipra.types import ModelChoice, Progress, silent


def variant(
    engine: runner.Engine,
    choice: ModelChoice,
    weights: str,
    execution: str,
    implementation: str = "auto",
    *,
    progress: Progress = silent,
) -> runner.Engine:
    """`engine`, which is of `choice`, with other weights, execution or implementation; "native", "eager" and
    "auto" mean as it is.

    Shares every tensor that both have, and leaves `engine` as it is to the last bit. Only weights that are
    stored smaller already, and those for transformers, which lays them out otherwise, are read from disk
    again. Raises KshipraError with the reason where there can be none.
    """
    is_compiled = isinstance(engine.model, StepModel)
    plain = engine.model.model if isinstance(engine.model, StepModel) else engine.model
    compiles = is_compiled or execution == "compiled"
    stores = weights not in ("native", plain.spec.weights)
    if implementation == "transformers" and not isinstance(plain, TransformersModel):
        progress("Loading the weights again for transformers", None, None)
        kept = weights if stores else plain.spec.weights
        chosen = dataclasses.replace(choice, weights=kept, execution=execution, implementation=implementation)
        return runner.load_choice(chosen, progress=progress)
    if compiles == is_compiled and not stores:
        return engine
    if compiles:
        require_compiled(plain)  # before anything is converted for nothing
    if stores:
        progress(f"Storing weights in {weights}", None, None)
        if is_stored(plain):
            chosen = dataclasses.replace(
                choice, weights=weights, execution="compiled" if compiles else "eager"
            )
            return runner.load_choice(chosen, progress=progress)
    model = wrap_model(plain, weights=weights)
    if compiles:
        progress("Preparing the compiled step", None, None)
        model = compiled(shell(model) if model is plain else model, progress=progress)
    return runner.Engine(model, engine.tokenizer, draft=engine.draft)


def moved(engine: runner.Engine, device: str) -> runner.Engine | None:
    """`engine` and its draft with all tensors on `device`, shared ones once; it is not to be used any more
    where it was. None where some are in a form that is for that device alone."""
    draft = moved(engine.draft, device) if engine.draft is not None else None
    is_bound = isinstance(engine.model, StepModel) or is_stored(engine.model)
    if is_bound or (draft is None) != (engine.draft is None):
        return None
    there: dict[tuple[Any, ...], torch.Tensor] = {}
    for module in inner(engine.model).modules():
        own = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        for name, tensor in own:
            place = tensor.data_ptr(), tensor.shape, tensor.stride()
            if place not in there:
                there[place] = tensor.data.to(device)
            is_weight = isinstance(tensor, nn.Parameter)
            setattr(module, name, nn.Parameter(there[place], False) if is_weight else there[place])
    return runner.Engine(engine.model, engine.tokenizer, draft=draft)
