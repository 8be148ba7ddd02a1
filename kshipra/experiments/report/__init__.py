"""Figures, tables and sentences of an experiment from its results alone: a module an experiment, with
`report(results) -> Report`. Never imports torch; every number in a sentence is computed from raw samples.
"""

from __future__ import annotations

from kshipra.errors import InputError
from kshipra.experiments import experiment_named
from kshipra.experiments.report.parts import Report
from kshipra.experiments.results import Results


def report_of(results: Results) -> Report:
    """What `results` show. A run that was stopped gives what there is; InputError where the samples are not
    those that the experiment takes."""
    experiment = experiment_named(results.experiment)
    if not results.cases:
        raise InputError("No case has been measured yet: run the experiment first.")
    try:
        return experiment.reporting().report(results)
    except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError, AttributeError) as error:
        raise InputError(
            f"The samples of this {experiment.name} file cannot be read ({type(error).__name__}: {error}): "
            "run the experiment again."
        ) from error
