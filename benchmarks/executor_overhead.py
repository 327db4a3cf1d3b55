"""Time of the executor itself, per instruction.

    python benchmarks/executor_overhead.py [--json OUT.json]
    mpiexec -n 2 python benchmarks/executor_overhead.py [--json OUT.json]
    mpiexec -n 2 python benchmarks/executor_overhead.py --run CONFIG [--set KEY=VALUE] [--json ...]

Stages are empty: they hand on the same small tensor. One rank has a stage alone; several are a
pipeline over MPI. Times are in microseconds. "all" is
processor time of the first rank per instruction, recording and dispatch included, and so is
waiting, in which MPI looks for messages. The others are wall-clock medians by kind.

With --run, ranks train as a configuration says, and the benchmark shows how long each rank is idle
between iterations, from the end of its last instruction to the start of the next iteration's first,
and how long its host computes in that time; "between" is the time from the end of the last rank's
last instruction to the start of the last rank's first, so that no rank waits in it for another
that still computes. The first two iterations do not count. Fewer cores than ranks lengthen all but
"computing".
"""

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from mpi4py import MPI
from torch import Tensor

from dynapipe_hpc.architecture.decoder import GptShape
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.microbatch import MicroBatch, PaddedRows
from dynapipe_hpc.executor.run import launch_plan
from dynapipe_hpc.executor.trace import IterationTrace
from dynapipe_hpc.executor.transport.mpi import MpiTransport
from dynapipe_hpc.experiment.run.run import run_experiment
from dynapipe_hpc.experiment.run.start import start_experiment
from dynapipe_hpc.experiment.watch.position import Position
from dynapipe_hpc.job.job import open_job
from dynapipe_hpc.job.machine import machine_facts
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.planner.cost.analytic import analytic_cost
from dynapipe_hpc.planner.cost.config import AnalyticConfig
from dynapipe_hpc.planner.make_plans import rank_plans
from dynapipe_hpc.planner.schedule.one_f_one_b import one_f_one_b
from dynapipe_hpc.planner.schedule.pipeline import schedule_pipeline

COMM = MPI.COMM_WORLD
N_MICROBATCHES = 32
N_ITERATIONS = 300
WIDTH, TOKENS = 8, 8
SHAPE = GptShape(
    n_layers=COMM.Get_size(),
    hidden_size=WIDTH,
    n_heads=1,
    ffn_size=WIDTH,
    vocab_size=8,
    max_tokens=TOKENS,
)


@dataclass(frozen=True)
class EmptyReport:
    """Result of a stage for an iteration."""

    loss: float = 0.0
    gradient_norm: float = 0.0
    learning_rate: float = 0.0
    peak_bytes: int = 0
    peak_has_transient: bool = False
    preferences: tuple[float, ...] = ()


class EmptyStage:
    """Computes nothing."""

    def __init__(self, *, first: bool, last: bool) -> None:
        tensor = torch.zeros(1, TOKENS, WIDTH)
        self._forward = None if last else tensor
        self._backward = None if first else tensor

    def load(self, index: int, microbatch: MicroBatch) -> None:
        pass

    def forward(
        self,
        index: int,  # noqa: ARG002
        activation: Tensor | None,  # noqa: ARG002
        *,
        split_backward: bool = False,  # noqa: ARG002
    ) -> Tensor | None:
        return self._forward

    def backward(self, index: int, gradient: Tensor | None) -> Tensor | None:  # noqa: ARG002
        return self._backward

    def backward_weight(self, index: int) -> None:
        pass

    def expect_last_backward(self, index: int) -> None:
        pass

    def reduce_gradients(self) -> None:
        pass

    def step_optimizer(self) -> None:
        pass

    def finish_iteration(self) -> EmptyReport:
        return EmptyReport()


def own_plan() -> RankPlan:
    cluster = Cluster(n_stages=COMM.Get_size(), device_memory_bytes=10**9)
    placement = Placement.equal_shares(SHAPE.n_layers, cluster.n_stages)
    cost = analytic_cost(SHAPE, placement, cluster, AnalyticConfig())
    microbatches = [PaddedRows((i,), TOKENS) for i in range(N_MICROBATCHES)]
    pipeline = schedule_pipeline(microbatches, cost, cluster, [one_f_one_b])
    boundaries = placement.boundaries(SHAPE)
    return rank_plans(0, [pipeline], cluster, cost, hidden_size=WIDTH, boundaries=boundaries)[
        COMM.Get_rank()
    ]


def measure() -> dict[str, float]:
    rank, size = COMM.Get_rank(), COMM.Get_size()
    plan, transport = own_plan(), MpiTransport(COMM, torch.float32)
    stage = EmptyStage(first=rank == 0, last=rank == size - 1)
    all_us, traces = [], []
    for _ in range(N_ITERATIONS):
        COMM.Barrier()
        started_s = time.thread_time()
        traces.append(launch_plan(plan, stage, transport).finish())
        all_us.append(1e6 * (time.thread_time() - started_s) / len(plan.instructions))
    return {"all": statistics.median(all_us), **medians_by_kind(plan, traces)}


def medians_by_kind(plan: RankPlan, traces: list[IterationTrace]) -> dict[str, float]:
    durations_us = defaultdict(list)
    for trace in traces:
        spans = zip(plan.instructions, trace.start_ms, trace.end_ms, strict=True)
        for instruction, start_ms, end_ms in spans:
            durations_us[type(instruction).__name__].append(1e3 * (end_ms - start_ms))
    return {kind: statistics.median(times) for kind, times in durations_us.items()}


def idle_between_iterations(config: Path, overrides: Sequence[str]) -> dict[str, float]:
    """Median times between the iterations of a run: of every rank, and of all together."""
    moments_s: list[tuple[float, float]] = []  # ends and starts, by the clock that ranks share
    computing_us: list[float] = []
    last_s = (0.0, 0.0)
    reach = Position.reach

    def timed(position: Position, index: int, *before: object) -> None:
        nonlocal last_s
        if index == 0:
            moments_s.append((last_s[0], time.perf_counter()))
            computing_us.append(1e6 * (time.thread_time() - last_s[1]))
        reach(position, index, *before)
        last_s = (time.perf_counter(), time.thread_time())

    Position.reach = timed  # type: ignore[method-assign, assignment]
    with TemporaryDirectory() as folder, open_job() as job:
        experiment = start_experiment(job, config, overrides)
        run_experiment(job, experiment, job.broadcast(Path(folder) / "run"))
        of_ranks = job.comm.allgather((np.array(moments_s[2:]), computing_us[2:]))
    between_s = np.diff(np.max([moments for moments, _ in of_ranks], axis=0))
    found = {"between": 1e6 * float(np.median(between_s))}
    for rank, (moments, computing) in enumerate(of_ranks):
        found[f"idle, rank {rank}"] = 1e6 * float(np.median(np.diff(moments)))
        found[f"computing, rank {rank}"] = statistics.median(computing)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--run", type=Path, metavar="CONFIG")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    results = measure()
    if arguments.run:
        results |= idle_between_iterations(arguments.run, arguments.set)
    if COMM.Get_rank() > 0:
        return
    print(f"[us], {COMM.Get_size()} ranks")
    for kind, time_us in results.items():
        print(f"{kind:16} {time_us:7.1f}")
    if arguments.json:
        machine = machine_facts(COMM.Get_size())
        arguments.json.write_text(json.dumps({"machine": machine, "us": results}, indent=1))


if __name__ == "__main__":
    main()
