"""Small runs to report on: iterations with known numbers, and two ranks with known times."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.examples.example_plans import parse_grid, rows_of, spans_of

from dynapipe_hpc.data.microbatch import PaddedRows
from dynapipe_hpc.executor.run import IterationTrace
from dynapipe_hpc.experiment.run.iteration import IterationResult
from dynapipe_hpc.plan.rank_plan import MemoryPlan, Prediction, RankPlan
from dynapipe_hpc.report.records import IterationRecord
from dynapipe_hpc.report.run_folder import RunFolder

GRID = """
rank 0 | L0 F0 a0>1 g0<1@0 a0>! g0<! B0 reduce step
rank 1 | a0<0@0 L0 a0<! F0 B0 g0>0 g0>! reduce step
"""
PASSES_MS = (((0.0, 10.0), (41.0, 60.0)), ((11.0, 21.0), (21.0, 40.0)))
PREDICTED_MS = 65.0


def example_plans(iteration: int = 0) -> list[RankPlan]:
    """One micro-batch of 3 x 16 tokens through two stages."""
    return [
        RankPlan(
            iteration=iteration,
            rank=rank,
            replica=0,
            stage=rank,
            hidden_size=8,
            microbatches=(PaddedRows((4, 2, 7), 16),),
            instructions=rows_of(instructions),
            memory=MemoryPlan(10**6, 0, (10,), (1,), (1,)),
            prediction=Prediction(PREDICTED_MS, spans_of(PASSES_MS[rank])),
        )
        for rank, instructions in parse_grid(GRID).items()
    ]


def example_traces(iteration: int = 0) -> list[IterationTrace]:
    """Every instruction takes 8 ms, one after the other: 72 ms on both ranks."""
    n_instructions = 9
    return [
        IterationTrace(
            iteration=iteration,
            rank=rank,
            start_ms=tuple(8.0 * i for i in range(n_instructions)),
            end_ms=tuple(8.0 * (i + 1) for i in range(n_instructions)),
            loss=1.0,
            gradient_norm=1.0,
            learning_rate=1e-3,
            peak_bytes=11,
        )
        for rank in range(2)
    ]


_TYPICAL: dict[str, Any] = {
    "loss": 4.0,
    "gradient_norm": 1.5,
    "learning_rate": 1e-3,
    "plans_ahead": 2,
    "n_microbatches": 4,
    "padded_tokens": 1250,
    "predicted_ms": 450.0,
    "last_pass_ms": 400.0,
    "predicted_peak_bytes": 3 * 2**20,
    "measured_peak_bytes": 4 * 2**20,
    "planning_ms": 20.0,
    "waited_ms": 0.0,
}


def record(iteration: int = 0, **changes: Any) -> IterationRecord:
    """An iteration of 1000 real among 1250 tokens in 500 ms, predicted to take 450 ms."""
    typical = IterationRecord(
        **_TYPICAL,
        iteration=iteration,
        n_samples=8,
        real_tokens=1000,
        measured_ms=500.0,
        longest_trip_ms=90.0,
        passes_ms=600.0,
        n_ranks=2,
        time="2026-05-04T03:02:01.000+02:00",
        n_iterations=40,
        tokens=1000 * (iteration + 1),
        seconds_left=19.5,
    )
    return replace(typical, **changes)


def write_run(path: Path, n_iterations: int, n_traced: int = 0, **changes: Any) -> RunFolder:
    """A finished run of equal iterations."""
    folder = RunFolder.create(path, '[report]\nnote = "<b>"\n', {"host": "n1", "cores": 4})
    for iteration in range(n_iterations):
        folder.add(record(iteration, **changes))
        if iteration < n_traced:
            folder.add_trace(example_plans(iteration), example_traces(iteration))
    folder.close()
    return folder


def iteration_result(iteration: int = 0, **changes: Any) -> IterationResult:
    """An iteration in which the average rank executes no pass in a quarter of the time."""
    typical = IterationResult(
        **_TYPICAL,
        iteration=iteration,
        n_samples=2,
        real_tokens=36,
        outlier_sample=-1,
        outlier_tokens=0,
        outlier_ms=0.0,
        passes_ms=300.0,
    )
    return replace(typical, **changes)
