"""A run whose cost table is wrong, on all ranks of an MPI job, each on a core of its own.

Started by online_costs.py.
"""

import argparse
import os
from pathlib import Path

import numpy as np

from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.run.run import run_experiment
from dynapipe_hpc.experiment.run.start import start_experiment
from dynapipe_hpc.job.job import open_job
from dynapipe_hpc.planner.cost.corrected_cost import Corrections
from dynapipe_hpc.planner.cost.pass_times import shape_of

MOST = 2.0
"""Entries are multiplied by up to this factor, or divided by it."""


def make_costs_wrong(experiment: Experiment, seed: int) -> None:
    """Multiplies times at random, by stage and part of training."""
    shape = shape_of(experiment.config.cluster.n_stages)
    powers = np.random.default_rng(seed).uniform(-1, 1, shape[2:])
    wrong = Corrections(np.broadcast_to(MOST**powers, shape))
    experiment.planner = experiment.corrected_planner(wrong)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--wrong", type=int, help="seed of the factors; without it, there are none")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    with open_job() as job:
        os.sched_setaffinity(0, {job.rank})
        experiment = start_experiment(job, arguments.config, arguments.overrides)
        if arguments.wrong is not None:
            make_costs_wrong(experiment, arguments.wrong)
        run_experiment(job, experiment, arguments.output)


if __name__ == "__main__":
    main()
