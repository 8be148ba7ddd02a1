"""A prediction in one plain sentence: what bounds this run, and the figure that says so. No gradio, no
torch."""

from __future__ import annotations

from kshipra import metrics
from kshipra.predict import Prediction
from kshipra.types import RunResult
from kshipra.ui import show, words


def _of_the_measured(prediction: Prediction) -> str:
    predicted_s, measured_s = prediction.predicted_step_s, prediction.measured_step_s
    assert predicted_s is not None
    assert measured_s is not None
    predicted, measured = show.seconds(predicted_s), show.seconds(measured_s)
    if predicted_s <= measured_s:
        return f"take {predicted} of the {measured} measured."
    return (
        f"would take {predicted}, and {measured} was measured: caches helped, or the machine was busier when "
        "its roofline was taken."
    )


def sentence(prediction: Prediction, result: RunResult | None = None) -> str:
    """What bounds the run, for a student, with the figures that it follows from; and why a token may take
    less than a pass, where guesses of `result` came true."""
    if result is None or not result.accepted_tokens:
        return _bound(prediction)
    tokens = show.digits(metrics.tokens_per_pass(result))
    return f"{_bound(prediction)} {words.PREDICTION['guessed'].format(tokens=tokens)}"


def _bound(prediction: Prediction) -> str:
    roofline = prediction.roofline
    if prediction.bound is None:
        return "There was no decode pass to hold a prediction against: ask for at least two new tokens."
    if prediction.bound == "overhead":
        return (
            "Per-step overhead bounds this run: reading and arithmetic explain "
            f"{show.seconds(prediction.predicted_step_s)} of the {show.seconds(prediction.measured_step_s)} "
            "measured; the rest is Python, kernel launches, slow kernels, or other work on this machine."
        )
    if prediction.bound == "arithmetic":
        return (
            f"Arithmetic bounds this run: {show.work(prediction.step_flops)} a step at "
            f"{show.work(roofline.flops_per_s)}/s {_of_the_measured(prediction)}"
        )
    assert prediction.step_bytes is not None
    assert prediction.step_kv_bytes is not None
    mostly_kv = prediction.step_kv_bytes > prediction.step_bytes / 2
    what = "the weights, and even more the keys and values," if mostly_kv else "the weights"
    return (
        f"Reading {what} bounds this run: {show.size(round(prediction.step_bytes))} a step at "
        f"{show.size(round(roofline.bytes_per_s))}/s {_of_the_measured(prediction)}"
    )
