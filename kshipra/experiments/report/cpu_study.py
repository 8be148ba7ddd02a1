"""Study A's case beside ours: steps with a fitted line, rates, and the memory of each mode."""

from __future__ import annotations

from statistics import median
from typing import Any

from kshipra.experiments import experiment_named
from kshipra.experiments.report import cpu_figures, study
from kshipra.experiments.report.cpu_figures import NAMES, US, Line, decode_s, fitted, life, lives, rates
from kshipra.experiments.report.parts import Figure, Report, Table, where
from kshipra.experiments.report.spread import apart, ratios, spread
from kshipra.experiments.results import Results
from kshipra.ui import show


def report(results: Results) -> Report:
    speeds = {case.settings["mode"]: case.samples["runs"] for case in results.of(kind="speed")}
    memory: dict[str, list[dict[str, Any]]] = {}
    for case in results.of(kind="memory"):
        memory.setdefault(case.settings["mode"], []).append(case.samples)
    lines = {mode: fitted(runs) for mode, runs in speeds.items()}
    experiment = experiment_named(results.experiment)
    place = where(results)
    parts: list[Figure | Table] = []
    if speeds:
        parts.append(cpu_figures.steps_figure(speeds, lines, place))
        parts.append(cpu_figures.rates_figure(speeds, place))
        parts.append(cpu_figures.speed_table(speeds, lines, place))
    if memory:
        parts += [cpu_figures.memory_figure(memory, place), cpu_figures.memory_table(memory, place)]
    answers = [*ids_answer(results), *rate_answers(speeds), *line_answers(lines, speeds)]
    return Report(
        experiment.title,
        experiment.question,
        (*answers, *memory_answers(memory)),
        tuple(parts),
    )


def ids_answer(results: Results) -> list[str]:
    found = [case.samples for case in results.of(kind="ids")]
    if not found:
        return []
    comparisons = found[0]["comparisons"]
    ties = [c for c in comparisons if c["verdict"] == "near-tie"]
    lengths = show.listing([str(n) for n in found[0]["prompt_tokens"]])
    if not ties:
        modes = show.listing([NAMES[c["second"]] for c in comparisons])
        return [
            f"Prompts of {lengths} tokens: {modes} write the same ids as no cache, token by token, "
            "as the study found."
        ]
    places = show.listing(
        [f"{NAMES[c['second']]} in prompt {c['row'] + 1} at new token {c['position'] + 1}" for c in ties]
    )
    return [
        f"Prompts of {lengths} tokens: ids part from no cache's at near-ties that rounding decides "
        f"({places}); "
        "up to there they are the same."
    ]


def rate_answers(speeds: dict[str, Any]) -> list[str]:
    if len(speeds) < len(NAMES):
        return []
    rate = {mode: rates(runs) for mode, runs in speeds.items()}
    theirs = study.A_TOK_PER_S
    pairs = (("kv_cache", "no_cache"), ("static_batch", "kv_cache"), ("static_batch", "no_cache"))
    ours = [spread(ratios(rate[one], rate[other]), show.times) for one, other in pairs]
    published = [show.times(theirs[one] / theirs[other]) for one, other in pairs]
    verdict = {1: "faster than", -1: "slower than", 0: "not told apart from"}
    cache, batch = apart(rate["kv_cache"], rate["no_cache"]), apart(rate["static_batch"], rate["kv_cache"])
    return [
        f"The cache is {verdict[cache]} no cache: {spread(rate['kv_cache'], show.digits)} tok/s against "
        f"{spread(rate['no_cache'], show.digits)}, {ours[0]} (study A: {published[0]}).",
        f"The batch of four is {verdict[batch]} one prompt at a time: "
        f"{spread(rate['static_batch'], show.digits)} tok/s in {speeds['static_batch'][0]['passes']} passes "
        f"for {speeds['kv_cache'][0]['passes']}, {ours[1]} (study A: {published[1]}), and {ours[2]} "
        f"the baseline "
        f"(study A: {published[2]}).",
    ]


def line_answers(lines: dict[str, Line], speeds: dict[str, Any]) -> list[str]:
    said = []
    for mode, line in lines.items():
        slope = spread([s * US for s in line.slopes_s], show.digits)
        rise = show.digits(100 * median(line.rises))
        if line.flat:
            verdict = "flat, as far as these runs show"
        else:
            verdict = "rising" if line.slope_s > 0 else "falling"
        expected = "rising" if mode == "no_cache" else "flat"
        against = "" if verdict.startswith(expected) else f", where study A saw it {expected}"
        said.append(
            f"{NAMES[mode].capitalize().replace('Kv', 'KV')}: the step is {verdict}{against}: {slope} µs "
            f"a token "
            f"of text, {rise} % of a step over {line.columns} tokens."
        )
    if {"kv_cache", "static_batch"} <= speeds.keys():
        ours = spread(ratios(decode_s(speeds["static_batch"]), decode_s(speeds["kv_cache"])), show.times)
        theirs = show.times(study.A_STEP_S["static_batch"] / study.A_STEP_S["kv_cache"])
        said.append(f"A step of four rows takes {ours} the time of a step of one (study A: {theirs}).")
    return said


def memory_answers(memory: dict[str, Any]) -> list[str]:
    if not {"kv_cache", "static_batch"} <= memory.keys():
        return []
    one, four = memory["kv_cache"], memory["static_batch"]
    extra = [[sample["peak_extra_bytes"] for sample in samples] for samples in (one, four)]
    order = apart(*extra)
    theirs = (
        f"study A saw {study.A_PEAK_MB['kv_cache']:,} MB one at a time and "
        f"{study.A_PEAK_MB['static_batch']:,} batched"
    )
    if order == 1:
        verdict = f"Batching peaks lower above the loaded model, as in study A ({theirs})"
    elif order == -1:
        verdict = f"Batching peaks higher above the loaded model, which contradicts study A ({theirs})"
    else:
        verdict = f"No difference in peaks above the loaded model beyond their spread ({theirs})"
    said = [
        f"{verdict}: {spread(extra[0], show.size)} one prompt at a time, {spread(extra[1], show.size)} as a "
        "batch of four."
    ]
    whole = [lives(one), lives(four)]
    if all(whole):
        loading = all(sample["loaded"]["high_water_bytes"] >= life(sample) for sample in one + four)
        cause = (
            "set by loading the model, before any token: it says nothing about a mode"
            if loading
            else "reached while generating"
        )
        said.append(
            f"The whole life's peak, which is what a process monitor shows, is {spread(whole[0], show.size)} "
            f"one at a time and {spread(whole[1], show.size)} batched, {cause}."
        )
    return said
