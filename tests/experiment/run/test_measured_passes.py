"""Passes as they were measured, beside what a cost model predicts for them."""

from dataclasses import replace

import numpy as np
import pytest
from tests.examples.example_runs import example_plans, example_traces
from tests.examples.linear_cost import linear_cost

from dynapipe_hpc.data.microbatch import Layout, PaddedRows, Recompute
from dynapipe_hpc.experiment.run.online_costs import measured_passes
from dynapipe_hpc.plan.instruction import (
    BackwardInput,
    BackwardWeight,
    Forward,
    Load,
    StepOptimizer,
)
from dynapipe_hpc.plan.instruction_rows import InstructionRows
from dynapipe_hpc.planner.cost.pass_times import shape_of

# A pass of 48 tokens through stage 1 takes (5 + 48 / 2) / 2 = 14.5 ms, half of a backward pass for
# gradients of weights; with recomputation, a backward pass takes twice as long.
COST = linear_cost(launch_ms=(10.0, 5.0), token_ms=(1.0, 0.5), recomputes=True)
SPLIT = InstructionRows.from_instructions(
    [
        Load(0),
        Forward(0),
        Load(1),
        Forward(1),
        BackwardInput(0),
        BackwardInput(1),
        BackwardWeight(1),
        BackwardWeight(0),
        StepOptimizer(),
    ]
)


def test_a_whole_backward_pass_counts_for_both_of_its_parts() -> None:
    plan, trace = example_plans()[1], example_traces()[1]
    passes = measured_passes(plan, trace, COST, np.full(shape_of(2), 2.0), n_replicas=1)
    at = np.s_[Layout.PADDED, Recompute.NONE, 1]
    assert passes.measured_ms[at].tolist() == [16.0, 8.0, 8.0]  # with 8 ms for its tokens
    assert passes.predicted_ms[at] == pytest.approx([14.5, 14.5, 14.5])
    assert passes.measured_ms.sum() == 32.0
    assert passes.taken_ms.tolist() == [[0.0, 32.0]]
    assert passes.expected_ms == pytest.approx(np.array([[0.0, 2 * 3 * 14.5]]))


def test_halves_of_backward_passes_count_for_one_part_each_in_their_own_way() -> None:
    """The second micro-batch recomputes: 29 ms backward, and 7.25 of them for weights."""
    padded, full = PaddedRows((0,), 48), PaddedRows((1,), 48, recompute=Recompute.FULL)
    plan = replace(example_plans()[1], microbatches=(padded, full), instructions=SPLIT)
    ends = (1.0, 3.0, 4.0, 8.0, 13.0, 23.0, 24.0, 44.0, 50.0)
    trace = replace(example_traces()[1], start_ms=(0.0, *ends[:-1]), end_ms=ends)
    passes = measured_passes(plan, trace, COST, np.ones(shape_of(2)), n_replicas=1)
    of_stage = np.s_[Layout.PADDED, :, 1]
    assert passes.measured_ms[of_stage].tolist() == [[3, 5, 20], [0, 0, 0], [5, 10, 1]]
    predicted_ms = [[14.5, 7.25, 7.25], [0, 0, 0], [14.5, 29 - 7.25, 7.25]]
    assert passes.predicted_ms[of_stage] == pytest.approx(np.array(predicted_ms))
    assert passes.predicted_ms[:, :, 0].max() == 0.0
