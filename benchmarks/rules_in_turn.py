"""Trains on the same batches by several planners in turn, on all ranks of an MPI job.

Started by demo_seeds.py.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from dynapipe_hpc.data.dataset.sampler import TokenBudgetSampler
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.executor.run import launch_plan
from dynapipe_hpc.experiment.config import any_placement
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import load_config
from dynapipe_hpc.experiment.rank.devices import find_device
from dynapipe_hpc.experiment.run.rank import Rank
from dynapipe_hpc.job.job import Job, open_job
from dynapipe_hpc.plan.codec import decode, encode_plans
from dynapipe_hpc.planner.make_plans import Planner

WARM_UP = (0, 0)  # the seed and the batch that are trained on before anything is measured


def train_in_turn(
    job: Job, variants: Mapping[str, Experiment], n_seeds: int, n_batches: int
) -> list[dict[str, list[dict[str, float]]]]:
    """Trains on the first batches of every seed by every planner; the same ranks and weights.

    Returns:
        By seed and name of a variant, an entry per batch: real tokens, seconds, predicted seconds.
    """
    first, *_ = variants.values()
    placement = any_placement(first.config)
    planners = {name: files.planner_of(placement) for name, files in variants.items()}
    first.placement = placement
    rank = Rank(job, first.open(), find_device(job, first.config))
    batches = [
        [sampler_of(first, seed).iteration(k) for k in range(n_batches)] for seed in range(n_seeds)
    ]
    found: list[dict[str, list[dict[str, float]]]] = [
        {name: [] for name in planners} for _ in range(n_seeds)
    ]
    n_trained = 0
    turns = [WARM_UP, *((seed, k) for seed in range(n_seeds) for k in range(n_batches))]
    for turn, (seed, k) in enumerate(turns):
        names = [*planners][turn % len(planners) :] + [*planners][: turn % len(planners)]
        for name in names:
            times_s = train(job, rank, planners[name], n_trained, batches[seed][k])
            n_trained += 1
            if turn > 0:
                tokens = sum(sample.tokens for sample in batches[seed][k])
                found[seed][name].append({"tokens": tokens, **times_s})
    rank.channels.close()
    return found


def sampler_of(files: Experiment, seed: int) -> TokenBudgetSampler:
    """The sampler with another seed."""
    data = files.config.data.model_copy(update={"seed": seed})
    return Experiment(files.config.model_copy(update={"data": data})).sampler


def train(
    job: Job, rank: Rank, planner: Planner, iteration: int, samples: Sequence[Sample]
) -> dict[str, float]:
    """Trains on one batch; planning is not timed."""
    planned = encode_plans(planner.make_plans(iteration, samples)) if job.is_first else []
    plan = decode(job.broadcast(planned)[job.rank])
    rank.loader.start_iteration(samples)
    job.barrier()
    started_s = time.perf_counter()
    launch_plan(plan, rank.stage, rank.channels.transport, rank.clock).finish()
    job.barrier()
    measured_s = time.perf_counter() - started_s
    return {"measured_s": measured_s, "predicted_s": 1e-3 * plan.prediction.iteration_ms}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--variants", required=True, help="JSON: name to list of overrides")
    parser.add_argument("--seeds", type=int, required=True)
    parser.add_argument("--batches", type=int, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    with open_job() as job:
        variants = {
            name: Experiment(load_config(arguments.config, overrides))
            for name, overrides in json.loads(arguments.variants).items()
        }
        found = train_in_turn(job, variants, arguments.seeds, arguments.batches)
        if job.is_first:
            arguments.output.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
