"""Ranks combine their numbers about an iteration without sending them to one of them."""

from dataclasses import replace
from signal import SIGTERM
from typing import Any

import pytest
from mpi4py import MPI

from dynapipe_hpc.experiment.run.iteration import IterationResult, all_reduce_fields
from dynapipe_hpc.job.job import Job

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK, N_RANKS = WORLD.Get_rank(), WORLD.Get_size()
LAST = RANK == N_RANKS - 1
OWN = IterationResult(
    iteration=3,
    loss=0.5 + RANK,
    gradient_norm=1.0,
    learning_rate=1e-3,
    n_samples=8,
    real_tokens=90,
    n_microbatches=2,
    padded_tokens=48 + RANK,
    predicted_ms=65.0,
    predicted_peak_bytes=10**12 + RANK,
    measured_peak_bytes=10**12 - RANK,
    waited_ms=0.25 * RANK,
    planning_ms=5.0,
    plans_ahead=7 - RANK,
    outlier_sample=-1,
    outlier_tokens=0,
    outlier_ms=0.0,
    passes_ms=20.0 + RANK,
    last_pass_ms=40.0 + RANK,
)


def test_the_numbers_of_all_ranks_are_known_to_all() -> None:
    planned: dict[str, Any] = {}
    if LAST:
        planned = {"outlier_sample": 0, "outlier_tokens": 1600, "outlier_ms": 180.5}
    if RANK == 0:
        planned["traced_until"] = 50
    planned["pass_times"] = (2.5, float(RANK))
    of_all = all_reduce_fields(replace(OWN, **planned), Job(WORLD))
    assert of_all == replace(
        OWN,
        loss=sum(0.5 + rank for rank in range(N_RANKS)),
        n_microbatches=2 * N_RANKS,
        padded_tokens=sum(48 + rank for rank in range(N_RANKS)),
        predicted_peak_bytes=10**12 + N_RANKS - 1,
        measured_peak_bytes=10**12,
        waited_ms=0.25 * (N_RANKS - 1),
        planning_ms=5.0 * N_RANKS,
        plans_ahead=8 - N_RANKS,
        outlier_sample=0,
        outlier_tokens=1600,
        outlier_ms=180.5,
        passes_ms=sum(20.0 + rank for rank in range(N_RANKS)),
        last_pass_ms=39.0 + N_RANKS,
        n_ranks=N_RANKS,
        traced_until=50,
        pass_times=(2.5 * N_RANKS, sum(range(N_RANKS))),
    )
    mean_ms = 20 + (N_RANKS - 1) / 2
    assert of_all.bubble_share == pytest.approx(1 - mean_ms / (39 + N_RANKS))


def test_a_signal_to_one_rank_stops_all() -> None:
    own = replace(OWN, stop_signal=SIGTERM if LAST else 0)
    assert all_reduce_fields(own, Job(WORLD)).stop_signal == SIGTERM
