"""A case in a process of its own: told on stdin what to measure, tells the samples in stdout's last line."""

from __future__ import annotations

import json
import sys

from kshipra.errors import KshipraError
from kshipra.experiments import experiment_named
from kshipra.experiments.rig import Case, Rig
from kshipra.types import ModelChoice, plain


def main() -> int:
    told = json.load(sys.stdin)
    rig = Rig(ModelChoice(**told["choice"]), told["quick"])
    case = Case(told["name"], told["settings"])
    try:
        samples = experiment_named(told["experiment"]).measuring().measure(rig, case)
    except KshipraError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(plain(samples), allow_nan=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
