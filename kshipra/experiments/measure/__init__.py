"""What is measured: a module an experiment, with `cases(rig)` and `measure(rig, case)`."""
