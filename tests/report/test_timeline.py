"""Plans and traces joined: every pass planned, every instruction measured."""

from dataclasses import replace

from tests.examples.example_runs import example_plans, example_traces
from tests.examples.plan_tables import rows_of, spans_of

from dynapipe_hpc.plan.instruction import (
    BackwardInput,
    BackwardWeight,
    Forward,
    Instruction,
    StepOptimizer,
)
from dynapipe_hpc.plan.rank_plan import MemoryPlan, Prediction
from dynapipe_hpc.report.timeline import BarKind, timeline_of


def test_measured_bars_are_the_instructions_in_the_order_of_the_plan() -> None:
    measured = timeline_of(example_plans(), example_traces()).measured
    assert [b.label for b in measured if b.rank == 1] == [
        "a0<0@0", "L0", "a0<!", "F0", "B0", "g0>0", "g0>!", "reduce", "step",
    ]  # fmt: skip
    assert [b.kind for b in measured if b.rank == 1] == [
        BarKind.TRANSFER, BarKind.LOAD, BarKind.WAIT, BarKind.FORWARD, BarKind.BACKWARD,
        BarKind.TRANSFER, BarKind.WAIT, BarKind.UPDATE, BarKind.UPDATE,
    ]  # fmt: skip


def test_activations_are_kept_from_a_forward_pass_to_the_last_of_its_backward_passes() -> None:
    """Two micro-batches, of which 10 and 7 bytes are kept; gradients of weights come last."""
    plan = example_plans()[1]
    steps: list[Instruction] = [Forward(0), Forward(1), BackwardInput(0), BackwardInput(1)]
    steps += [BackwardWeight(1), BackwardWeight(0), StepOptimizer()]
    plan = replace(
        plan,
        microbatches=plan.microbatches * 2,
        instructions=rows_of(steps),
        memory=MemoryPlan(100, 0, (10, 7), (0, 0), (0, 0)),
        prediction=Prediction(9.0, spans_of([(0.0, 1.0)] * 6)),
    )
    trace = replace(example_traces()[1], start_ms=(0.0,) * 7, end_ms=(0.0,) * 7)
    timeline = timeline_of([plan], [trace])
    assert [bar.kept_bytes for bar in timeline.planned] == [10, 17, 17, 17, 10, 0]
    assert [bar.kept_bytes for bar in timeline.measured] == [10, 17, 17, 17, 10, 0, None]
