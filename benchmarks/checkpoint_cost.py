"""What does an asynchronous checkpoint take from training?

    mpiexec -n 2 python benchmarks/checkpoint_cost.py CONFIG [--json OUT.json]

Trains the demo, configs/demo/dynamic.toml after `make demo`, again and again on the same batch. A
pair of iterations of which the first ends with the beginning of a checkpoint takes turns with a
pair that has none, so that both meet the same machine. "lost" is what a pair gets longer by, as a
share of one iteration; "stopped" is the time in which training stands still, and "written" how
long it takes until the checkpoint is complete. "processor" is the processor time that copying and
writing take on one rank, which is what training loses where no core is free, and its share of the
time that the rank's own thread is busy in an iteration. All are medians. "load_average" is of all
that the machine did meanwhile: two ranks alone make it two.
"""

import argparse
import json
import os
import shutil
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from mpi4py import MPI

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.executor.run import run_plan
from dynapipe_hpc.experiment.experiment import open_experiment
from dynapipe_hpc.experiment.files import ExperimentFiles
from dynapipe_hpc.experiment.load import load_config
from dynapipe_hpc.experiment.rank.assemble import Worker, build_worker
from dynapipe_hpc.experiment.rank.devices import find_device
from dynapipe_hpc.experiment.run.checkpoints import Checkpoints
from dynapipe_hpc.experiment.run.online_costs import FixedCosts
from dynapipe_hpc.experiment.watch.position import private_position
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.machine import machine_facts
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.training.checkpoint.config import CheckpointConfig
from dynapipe_hpc.training.checkpoint.folder import CheckpointFolder
from dynapipe_hpc.training.checkpoint.write_parts import write_parts

JOB = Job(MPI.COMM_WORLD)
N_PAIRS, N_WARM, N_WRITES = 12, 2, 9


@dataclass(frozen=True)
class Training:
    """One batch, of which a rank executes its plan over and over."""

    worker: Worker
    plan: RankPlan
    samples: list[Sample]
    checkpoints: Checkpoints

    def iterate(self) -> None:
        self.worker.loader.start_iteration(self.samples)
        run_plan(self.plan, self.worker.stage, self.worker.channels.transport, self.worker.clock)

    def pair_ms(self, n_done: int) -> tuple[float, float]:
        """The time of two iterations and of what begins a checkpoint, if there is one."""
        JOB.barrier()
        started_s = time.perf_counter()
        self.iterate()
        stopped_s = time.perf_counter()
        if n_done:
            self.checkpoints.save_if_due(n_done)
        went_on_s = time.perf_counter()
        self.iterate()
        JOB.barrier()
        ended_s = time.perf_counter()
        return 1e3 * (ended_s - started_s), 1e3 * (went_on_s - stopped_s)

    def written_ms(self, n_done: int) -> float:
        started_s = time.perf_counter()
        self.checkpoints.save_now(n_done)
        return 1e3 * (time.perf_counter() - started_s)

    def processor_ms(self, folder: Path) -> float:
        """What this rank computes for a checkpoint; no other thread of it is at work."""
        folder.mkdir(exist_ok=True)
        started_s = time.process_time()
        write_parts(folder, JOB.rank, self.worker.state.snapshot())
        return 1e3 * (time.process_time() - started_s)

    def busy_ms(self) -> float:
        """Processor time of this rank's thread in an iteration."""
        started_s = time.thread_time()
        self.iterate()
        return 1e3 * (time.thread_time() - started_s)


def training(path: Path, folder: Path) -> Training:
    config = load_config(path)
    experiment = open_experiment(ExperimentFiles(config))
    worker = build_worker(experiment, JOB, find_device(JOB, config))
    samples = experiment.sampler.iteration(0)
    plans = experiment.planner.make_plans(0, samples)
    kept = CheckpointConfig(every=1)
    written = CheckpointFolder(folder, kept)
    costs = FixedCosts(experiment.planner)
    checkpoints = Checkpoints(
        JOB, kept, written, worker.state, {}, private_position(), lambda: None, costs
    )
    return Training(worker, plans[config.cluster.plan_of(JOB.rank)], samples, checkpoints)


def measure(trained: Training, folder: Path) -> dict[str, float]:
    """Medians, on this rank."""
    for _ in range(N_WARM):
        trained.pair_ms(0)
    without, with_one, stopped = [], [], []
    for n_done in range(1, N_PAIRS + 1):
        without.append(trained.pair_ms(0)[0])
        pair_ms, stopped_ms = trained.pair_ms(n_done)
        with_one.append(pair_ms)
        stopped.append(stopped_ms)
        trained.checkpoints.save_now(n_done)
    processor_ms = statistics.median(trained.processor_ms(folder) for _ in range(N_WRITES))
    JOB.barrier()
    busy_ms = statistics.median(trained.busy_ms() for _ in range(N_WRITES))
    iteration_ms = statistics.median(without) / 2
    return {
        "iteration_ms": iteration_ms,
        "stopped_ms": statistics.median(stopped),
        "written_ms": statistics.median(
            trained.written_ms(N_PAIRS + 1 + k) for k in range(N_WRITES)
        ),
        "lost_percent": 100 * (statistics.median(with_one) / 2 / iteration_ms - 1) * 2,
        "processor_ms": processor_ms,
        "processor_percent": 100 * processor_ms / busy_ms,
        "load_average": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    folder = Path(JOB.broadcast(mkdtemp(dir=Path.cwd()) if JOB.is_first else ""))
    results = measure(training(arguments.config, folder / "checkpoints"), folder / "parts")
    if not JOB.is_first:
        return
    shutil.rmtree(folder)
    for name, number in results.items():
        print(f"{name:26} {number:10.2f}")
    if arguments.json:
        facts = {"machine": machine_facts(JOB.size), "results": results}
        arguments.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
