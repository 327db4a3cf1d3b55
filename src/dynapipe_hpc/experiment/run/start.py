"""The start of a run: all input is read and checked before torch is loaded."""

from collections.abc import Sequence
from pathlib import Path

from dynapipe_hpc.data.errors import warn
from dynapipe_hpc.experiment.checks import check_run, check_size, check_torch
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import load_config
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.machine import crowded_hosts


def start_experiment(job: Job, path: Path, overrides: Sequence[str]) -> Experiment:
    """Reads a configuration and checks what a run depends on; all ranks together.

    The last check loads torch; all other errors are reported within two seconds. `overrides` are
    as for `load_config`.
    """
    placement = None
    with job.fail_together():
        config = load_config(path, overrides)
        check_size(job.size, config.cluster)
        experiment = Experiment(config)
        if job.is_first:
            check_run(experiment)
            # On the first rank only, as others might round costs differently.
            placement = experiment.placement
        experiment.open_files()
    if placement := job.broadcast(placement):
        experiment.placement = placement
    if config.training.iterations is None:
        job.say(f"iterations: {experiment.describe_iterations()}")
    for line in crowded_hosts(job, config.training.threads):
        warn(line)
    with job.fail_together():
        _ = experiment.planner  # before there are threads
        check_torch()
    return experiment
