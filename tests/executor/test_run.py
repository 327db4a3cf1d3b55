from dataclasses import replace
from itertools import count
from weakref import ref

import numpy as np
import numpy.typing as npt
import pytest
from tests.examples.example_plans import rows_of
from tests.examples.local_ranks import LocalNetwork, LocalTransport, LocalWorld
from tests.examples.planned_iteration import planned_iteration

from dynapipe_hpc.architecture.decoder import GptShape
from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.data.microbatch import MicroBatch, PaddedRows
from dynapipe_hpc.executor.run import ExecutionError, launch_plan
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.instruction import Backward, BackwardInput, BackwardWeight, StartReceive
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.training.counters import StageReport

Array = npt.NDArray[np.float64]


class LinearStage:
    """Multiplies its input by a factor; the input of the first stage is its sample ids."""

    def __init__(self, factor: float, *, first: bool, last: bool, width: int = 1) -> None:
        self.factor = factor
        self.factor_gradient = 0.0
        self.calls: list[str] = []
        self._first = first
        self._last = last
        self._width = width
        self._loaded: dict[int, Array] = {}
        self._inputs: dict[int, Array] = {}
        self._waiting: dict[int, float] = {}
        self._split_backward = False
        self._loss = 0.0

    def load(self, index: int, microbatch: MicroBatch) -> None:
        self.calls.append(f"load {index}")
        values = np.zeros((microbatch.n_rows, microbatch.row_tokens, self._width))
        values[:, 0, 0] = [row[0] for row in microbatch.rows]
        self._loaded[index] = values

    def forward(
        self, index: int, activation: Array | None, *, split_backward: bool = False
    ) -> Array | None:
        self.calls.append(f"forward {index}{' to split' if split_backward else ''}")
        self._split_backward = split_backward
        inputs = self._loaded.pop(index) if activation is None else activation
        self._inputs[index] = inputs
        if not self._last:
            return self.factor * inputs
        self._loss += float((self.factor * inputs).sum())
        return None

    def backward(self, index: int, gradient: Array | None) -> Array | None:
        self.calls.append(f"backward {index}")
        inputs = self._inputs.pop(index)
        arrived = np.ones_like(inputs) if gradient is None else gradient
        self._waiting[index] = float((arrived * inputs).sum())
        if not self._split_backward:
            self.factor_gradient += self._waiting.pop(index)
        return None if self._first else self.factor * arrived

    def backward_weight(self, index: int) -> None:
        self.calls.append(f"weight {index}")
        self.factor_gradient += self._waiting.pop(index)

    def expect_last_backward(self, index: int) -> None:
        self.calls.append(f"last {index}")

    def reduce_gradients(self) -> None:
        self.calls.append("reduce")

    def step_optimizer(self) -> None:
        self.calls.append("step")

    def finish_iteration(self) -> StageReport:
        report, self._loss = StageReport(self._loss, 0.0, 0.0, 0), 0.0
        return report


MICROBATCHES = [PaddedRows((i, 10 * i), 3) for i in range(1, 6)]
SHAPE = GptShape(n_layers=4, hidden_size=1, n_heads=1, ffn_size=1, vocab_size=9, max_tokens=64)
FACTORS = [2.0, 3.0, 5.0, 7.0]


def plans_of(n_stages: int, schedule: str = "1f1b") -> list[RankPlan]:
    cluster = Cluster(n_stages=n_stages, device_memory_bytes=10**6)
    return planned_iteration([MICROBATCHES], cluster, SHAPE, schedule, iteration=3)


def stages_of(n_stages: int) -> list[LinearStage]:
    return [
        LinearStage(factor, first=stage == 0, last=stage == n_stages - 1)
        for stage, factor in enumerate(FACTORS[:n_stages])
    ]


def alone() -> LocalTransport[Array]:
    return LocalNetwork(LocalWorld(1), np.zeros).transport(0)


def test_instructions_run_from_top_to_bottom() -> None:
    (stage,) = stages_of(1)
    launch_plan(plans_of(1)[0], stage, alone()).finish()
    assert stage.calls[:6] == [
        "load 0", "forward 0", "backward 0", "load 1", "forward 1", "backward 1",
    ]  # fmt: skip
    assert stage.calls[-4:] == ["last 4", "backward 4", "reduce", "step"]


class Ticks:
    """Two milliseconds per look."""

    def __init__(self) -> None:
        self._ticks = count(25)

    def now(self) -> int:
        return next(self._ticks)

    def has_passed(self, moment: int) -> bool:
        raise AssertionError(f"nobody asks for {moment}")

    def ms_between(self, start: int, end: int) -> float:
        return 2.0 * (end - start)


class LateClock(Ticks):
    """A device that reaches a moment when it was asked for often enough."""

    def __init__(self) -> None:
        super().__init__()
        self.n_looks = 0

    def has_passed(self, moment: int) -> bool:
        self.n_looks += 1
        return self.n_looks > moment


class Reached:
    """Recorded progress of a plan."""

    def __init__(self) -> None:
        self.found: list[tuple[int, object]] = []

    def reach(self, index: int, before: object) -> None:
        self.found.append((index, before))


def test_a_plan_is_launched_without_waiting_and_its_progress_is_recorded() -> None:
    (plan,) = plans_of(1)
    (stage,) = stages_of(1)
    clock, progress, n = LateClock(), Reached(), len(plan.instructions)
    launched = launch_plan(plan, stage, alone(), clock, progress=progress)
    # Two moments per instruction after the origin, of which the first is before it.
    moments = [26 + 2 * i for i in range(n)]
    assert progress.found == [*enumerate(moments), (n, moments[-1] + 1)]
    assert stage.calls[-1] == "step"
    n_busy = sum(launched.is_busy for _ in range(1000))
    assert n_busy == moments[-1] + 1
    assert launched.finish().loss == 2.0 * 11 * (1 + 2 + 3 + 4 + 5)


class FailingStage(LinearStage):
    def __init__(self, error: Exception, *, last: bool = True) -> None:
        super().__init__(1.0, first=True, last=last)
        self._error = error

    def backward(self, index: int, gradient: Array | None) -> Array | None:
        if index == 2:
            raise self._error
        return super().backward(index, gradient)


class WatchedStage(LinearStage):
    """Counts what others still hold, at the end of an iteration, of all that passed through."""

    def __init__(self, factor: float, *, first: bool, last: bool) -> None:
        super().__init__(factor, first=first, last=last)
        self._made: list[ref[Array]] = []
        self._received: list[ref[Array]] = []
        self.n_held = (0, 0)

    def forward(
        self, index: int, activation: Array | None, *, split_backward: bool = False
    ) -> Array | None:
        made = super().forward(index, activation, split_backward=split_backward)
        return self._watched(activation, made)

    def backward(self, index: int, gradient: Array | None) -> Array | None:
        return self._watched(gradient, super().backward(index, gradient))

    def step_optimizer(self) -> None:
        super().step_optimizer()
        held = [sum(r() is not None for r in refs) for refs in (self._made, self._received)]
        self.n_held = (held[0], held[1])

    def _watched(self, received: Array | None, made: Array | None) -> Array | None:
        self._made += [] if made is None else [ref(made)]
        self._received += [] if received is None else [ref(received)]
        return made


def test_what_was_sent_or_used_is_kept_by_nobody_but_receive_slots() -> None:
    plans = plans_of(2)
    stages = [WatchedStage(2.0, first=True, last=False), WatchedStage(3.0, first=False, last=True)]
    world = LocalWorld(2)
    network = LocalNetwork(world, np.zeros)
    world.run(lambda r: launch_plan(plans[r], stages[r], network.transport(r)).finish())
    for plan, stage in zip(plans, stages, strict=True):
        slots = {i.slot for i in plan.instructions if isinstance(i, StartReceive)}
        assert len(slots) < len(MICROBATCHES)
        assert stage.n_held == (0, len(slots))


def test_a_failure_names_iteration_rank_instruction_and_micro_batch() -> None:
    cause = MemoryError("no room for 7 bytes")
    with pytest.raises(
        ExecutionError,
        match=r"iteration 3, rank 0, instruction 8 \(Backward B2\), micro-batch 2 of 2 x 3 "
        r"tokens: MemoryError: no room for 7 bytes",
    ) as raised:
        launch_plan(plans_of(1)[0], FailingStage(cause), alone()).finish()
    assert raised.value.__cause__ is cause


def test_a_reason_to_end_the_run_stays_one() -> None:
    with pytest.raises(RunError, match=r"instruction 8 \(Backward B2\), .*: training diverged$"):
        launch_plan(plans_of(1)[0], FailingStage(RunError("training diverged")), alone()).finish()


def test_a_failing_rank_ends_its_peers() -> None:
    plans = plans_of(2)
    stages = [FailingStage(ValueError("broken"), last=False), stages_of(2)[1]]
    world = LocalWorld(2)
    network = LocalNetwork(world, np.zeros)
    with pytest.raises(ExecutionError, match=r"rank 0, .*ValueError: broken"):
        world.run(lambda r: launch_plan(plans[r], stages[r], network.transport(r)).finish())


def test_the_last_backward_pass_is_that_of_weights_where_passes_are_split() -> None:
    (plan,), (stage,) = plans_of(1), stages_of(1)
    *before, reduce, step = plan.instructions
    split = [BackwardInput(s.microbatch) if isinstance(s, Backward) else s for s in before]
    # The last micro-batch is not the last whose weights get their gradients.
    later = [BackwardWeight(i) for i in (0, 1, 4, 3, 2)]
    rows = rows_of([*split, *later, reduce, step])
    trace = launch_plan(replace(plan, instructions=rows), stage, alone()).finish()
    assert stage.calls[:3] == ["load 0", "forward 0 to split", "backward 0"]
    assert stage.calls[-9:] == [
        "backward 4", *(f"weight {i}" for i in (0, 1, 4, 3)), "last 2", "weight 2", "reduce",
        "step",
    ]  # fmt: skip
    assert stage.factor_gradient == trace.loss / stage.factor
