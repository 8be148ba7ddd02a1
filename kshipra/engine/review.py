"""After the recipes: every pair compared token by token, where two part both logits taken again there, and
what the checks and the machine's roofline say.

Runs are deterministic, so a recipe that runs again with its seeds comes to the same place by the same
arithmetic; nothing is kept for it while recipes are timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations

import torch

from kshipra.engine import roofline
from kshipra.engine.check import run_checks, tolerance
from kshipra.engine.layout import layout_named
from kshipra.engine.runner import Engine, never
from kshipra.metrics import Difference, first_difference
from kshipra.recipes import LAB_KEYS, recipe_named
from kshipra.types import Comparison, Recipe, Request, Reviewed, RunResult, Verdict

Place = tuple[int, int]  # row, position among its new tokens


def review(
    engine: Engine,
    requests: Sequence[Request],
    results: Mapping[str, RunResult],
    *,
    stopped: Callable[[], bool],
    tell: Callable[[str], None],
) -> Reviewed | None:
    """All that is found out about `results`, by recipe key; None where it was stopped. `tell` hears what
    takes long."""
    ways = {key: (recipe_named(key), result) for key, result in results.items()}
    checks = {
        key: run_checks(engine.model, layout_named(recipe.fault), engine.device)
        for key, (recipe, _) in ways.items()
        if key in LAB_KEYS
    }
    comparisons = compare(engine, requests, ways, stopped=stopped, tell=tell)
    if stopped():
        return None
    machine = roofline.cached_roofline(engine.device, engine.dtype, progress=lambda what, *_: tell(what))
    return Reviewed(comparisons, checks, machine, texts_of(engine, results.values()))


def compare(
    engine: Engine,
    requests: Sequence[Request],
    results: Mapping[str, tuple[Recipe, RunResult]],
    *,
    stopped: Callable[[], bool] = never,
    tell: Callable[[str], None] = lambda what: None,
) -> tuple[Comparison, ...]:
    """Every pair of `results`, by recipe key, in their order; none where it was stopped."""
    pairs = list(combinations(results, 2))
    parting = {pair: first_difference(results[pair[0]][1], results[pair[1]][1]) for pair in pairs}
    wanted: dict[str, set[Place]] = {key: set() for key in results}
    for pair, difference in parting.items():
        if difference is not None and None not in (difference.first_id, difference.second_id):
            for key in pair:
                wanted[key].add((difference.row, difference.position))
    if any(wanted.values()):
        tell("Taking the logits again where two ways part")
    logits = {
        key: logits_at(engine, requests, results[key][0], places, stopped=stopped)
        for key, places in wanted.items()
        if places
    }
    if stopped():
        return ()
    weights = engine.model.spec.weights
    return tuple(_comparison(*pair, parting[pair], logits, weights) for pair in pairs)


def logits_at(
    engine: Engine,
    requests: Sequence[Request],
    recipe: Recipe,
    places: set[Place],
    *,
    stopped: Callable[[], bool] = never,
) -> dict[Place, torch.Tensor]:
    """The logits (V) from which `recipe` took its token at each of `places`, by running it again so far."""
    found: dict[Place, torch.Tensor] = {}

    def observe(row: int, position: int, logits: torch.Tensor) -> None:
        if (row, position) in places:
            found[row, position] = logits.clone()

    def enough() -> bool:
        return stopped() or len(found) == len(places)

    layout = layout_named(recipe.fault)
    for _ in engine.run(requests, mode=recipe.mode, stopped=enough, layout=layout, observe=observe):
        pass
    return found


def _comparison(
    first: str,
    second: str,
    difference: Difference | None,
    logits: Mapping[str, Mapping[Place, torch.Tensor]],
    weights: str,
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
    verdict = _verdict(best - next_best, largest, one, weights)
    return Comparison(first, second, verdict, *where, best - next_best, largest)


def _verdict(margin: float, largest: float, logits: torch.Tensor, weights: str = "native") -> Verdict:
    """A difference beyond rounding is a fault, and so is one too small to have turned the choice."""
    return "near-tie" if margin < 2 * largest <= 2 * tolerance(logits, weights) else "fault"


def texts_of(engine: Engine, results: Iterable[RunResult]) -> dict[int, str]:
    """Each id that `results` name, chosen or a candidate, and its text alone."""
    tokens = [token for result in results for step in result.steps for token in step.new_tokens]
    ids = {token.id for token in tokens} | {id for token in tokens for id, _ in token.best}
    return {id: engine.tokenizer.decode([id]) for id in sorted(ids)}
