"""Numbers of all ranks about an iteration."""

from dataclasses import replace
from typing import Any

from dynapipe_hpc.experiment.run.iteration import IterationResult


def iteration_result(iteration: int = 0, **changes: Any) -> IterationResult:
    """An iteration in which the average rank executes no pass in a quarter of the time."""
    typical = IterationResult(
        iteration=iteration,
        loss=4.0,
        gradient_norm=1.5,
        learning_rate=1e-3,
        n_samples=2,
        real_tokens=36,
        n_microbatches=4,
        padded_tokens=1250,
        predicted_ms=450.0,
        predicted_peak_bytes=3 * 2**20,
        measured_peak_bytes=4 * 2**20,
        waited_ms=0.0,
        planning_ms=20.0,
        plans_ahead=2,
        outlier_sample=-1,
        outlier_tokens=0,
        outlier_ms=0.0,
        passes_ms=300.0,
        last_pass_ms=400.0,
    )
    return replace(typical, **changes)
