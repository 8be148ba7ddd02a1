"""After the recipes: every pair compared token by token, where two part both logits taken again there, and
what the checks and the machine's roofline say.

Runs are deterministic, so a recipe that runs again with its seeds comes to the same place by the same
arithmetic; nothing is kept for it while recipes are timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import torch

from kshipra.engine import roofline
from kshipra.engine.check import run_checks, tolerance
from kshipra.engine.layout import layout_named
from kshipra.engine.runner import Engine, never
from kshipra.metrics import Difference, differences
from kshipra.recipes import LAB_KEYS, recipe_named
from kshipra.types import Comparison, Recipe, Request, Reviewed, RunResult, Verdict

Place = tuple[int, int]  # row, position among its new tokens
Options = Mapping[str, Any]  # of Engine.run, beside requests and mode: how a recipe shares passes, for one


def review(
    engines: Mapping[str, Engine],
    requests: Sequence[Request],
    results: Mapping[str, RunResult],
    *,
    stopped: Callable[[], bool],
    tell: Callable[[str], None],
    options: Mapping[str, Options] | None = None,
) -> Reviewed | None:
    """All that is found out about `results`, by recipe key as `engines` are that ran them and the `options`
    that they ran with; None where it was stopped. `tell` hears what takes long."""
    ways = {key: (recipe_named(key), result) for key, result in results.items()}
    checks = {
        key: run_checks(engines[key].model, layout_named(recipe.fault), engines[key].device)
        for key, (recipe, _) in ways.items()
        if key in LAB_KEYS
    }
    comparisons = compare(engines, requests, ways, stopped=stopped, tell=tell, options=options)
    if stopped():
        return None
    engine = engines[next(iter(results))]  # one model, so one tokenizer, device and arithmetic
    machine = roofline.cached_roofline(engine.device, engine.dtype, progress=lambda what, *_: tell(what))
    return Reviewed(comparisons, checks, machine, texts_of(engine, results.values()))


def compare(
    engine: Engine | Mapping[str, Engine],
    requests: Sequence[Request],
    results: Mapping[str, tuple[Recipe, RunResult]],
    *,
    stopped: Callable[[], bool] = never,
    tell: Callable[[str], None] = lambda what: None,
    every_row: bool = False,
    options: Mapping[str, Options] | None = None,
) -> tuple[Comparison, ...]:
    """Every pair of `results`, by recipe key, in their order; none where it was stopped.

    `engine` ran them all, or is one a key: logits are taken again from the engine whose they are, with the
    `options` of that key. A pair has one Comparison, of the first row that parts; with `every_row` one of
    each row that does.
    """
    engines = engine if isinstance(engine, Mapping) else dict.fromkeys(results, engine)
    pairs = list(combinations(results, 2))
    parting: dict[tuple[str, str], list[Difference]] = {}
    wanted: dict[str, set[Place]] = {key: set() for key in results}
    for pair in pairs:
        found = list(differences(*(results[key][1] for key in pair)))
        parting[pair] = found if every_row else found[:1]
        for difference in parting[pair]:
            if None not in (difference.first_id, difference.second_id):
                for key in pair:
                    wanted[key].add((difference.row, difference.position))
    if any(wanted.values()):
        tell("Taking the logits again where two ways part")
    logits = {
        key: logits_at(
            engines[key], requests, results[key][0], places, stopped=stopped, options=(options or {}).get(key)
        )
        for key, places in wanted.items()
        if places
    }
    if stopped():
        return ()
    return tuple(
        _comparison(*pair, difference, logits, [engines[key].model.spec.weights for key in pair])
        for pair in pairs
        for difference in parting[pair] or [None]
    )


def logits_at(
    engine: Engine,
    requests: Sequence[Request],
    recipe: Recipe,
    places: set[Place],
    *,
    stopped: Callable[[], bool] = never,
    options: Options | None = None,
) -> dict[Place, torch.Tensor]:
    """The logits (V) from which `recipe` took its token at each of `places`, by running it again so far."""
    found: dict[Place, torch.Tensor] = {}

    def observe(row: int, position: int, logits: torch.Tensor) -> None:
        if (row, position) in places:
            found[row, position] = logits.clone()

    def enough() -> bool:
        return stopped() or len(found) == len(places)

    asked = {"mode": recipe.mode, "layout": layout_named(recipe.fault), **(options or {})}
    for _ in engine.run(requests, stopped=enough, observe=observe, **asked):
        pass
    return found


def _comparison(
    first: str,
    second: str,
    difference: Difference | None,
    logits: Mapping[str, Mapping[Place, torch.Tensor]],
    weights: Sequence[str],
) -> Comparison:
    if difference is None:
        return Comparison(first, second, "identical")
    where = (difference.row, difference.position, difference.first_id, difference.second_id)
    if None in where:
        return Comparison(first, second, "ended", *where)
    place = (difference.row, difference.position)
    one, other = logits[first][place], logits[second][place]
    best, next_best = one.float().topk(2).values.tolist()
    largest = (one.float() - other.float()).abs().max().item()
    allowed = max(tolerance(one, *weights), tolerance(other, *weights))
    margin = best - next_best
    return Comparison(first, second, _verdict(margin, largest, allowed), *where, margin, largest)


def _verdict(margin: float, largest: float, allowed: float) -> Verdict:
    """A difference beyond what rounding is `allowed` is a fault, and so is one too small to have turned the
    choice."""
    return "near-tie" if margin < 2 * largest <= 2 * allowed else "fault"


def texts_of(engine: Engine, results: Iterable[RunResult]) -> dict[int, str]:
    """Each id that `results` name, chosen or a candidate, and its text alone."""
    tokens = [token for result in results for step in result.steps for token in step.new_tokens]
    ids = {token.id for token in tokens} | {id for token in tokens for id, _ in token.best}
    return {id: engine.tokenizer.decode([id]) for id in sorted(ids)}
