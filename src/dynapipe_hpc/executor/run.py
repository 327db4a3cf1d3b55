"""Execution of a rank's plan."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, Protocol, assert_never

from dynapipe_hpc.data.errors import InputError, RunError
from dynapipe_hpc.executor.clock import Clock, HostClock
from dynapipe_hpc.executor.describe_step import describe_step
from dynapipe_hpc.executor.stage import Stage, Tensor
from dynapipe_hpc.executor.transport.transport import Transport
from dynapipe_hpc.plan.instruction import (
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Instruction,
    Load,
    Payload,
    ReduceGradients,
    StartReceive,
    StartSend,
    StepOptimizer,
    WaitReceive,
    WaitSend,
)
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.training.counters import StageReport


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationTrace(StageReport):
    """Measurements of one rank in one iteration."""

    iteration: int
    rank: int
    start_ms: tuple[float, ...]
    end_ms: tuple[float, ...]


HOST_CLOCK = HostClock()


class Progress(Protocol):
    """Record of a rank's progress in its plan."""

    def reach(self, index: int, before: object) -> None:
        """Records that the host has executed all instructions before `index`."""
        ...


class ExecutionError(RuntimeError):
    """An instruction of a plan failed unexpectedly; the message names it, the cause is chained."""


class LaunchedPlan(Generic[Tensor]):
    """Handle of a plan that the host has executed and that the device may still be executing.

    It holds the tensors received but not yet used, and those produced but not yet sent.
    """

    def __init__(
        self, plan: RankPlan, stage: Stage[Tensor], transport: Transport[Tensor], clock: Clock[Any]
    ) -> None:
        self._plan, self._stage, self._transport, self._clock = plan, stage, transport, clock
        self._splits_backward = plan.splits_backward
        self._n_unfinished = len(plan.microbatches)  # micro-batches before their last backward pass
        self._inbox: dict[tuple[Payload, int], Tensor] = {}
        self._outbox: dict[tuple[Payload, int], Tensor] = {}
        self._starts: list[Any] = []
        self._ends: list[Any] = []

    def launch(self, progress: Progress | None) -> None:
        """Executes the plan; see `launch_plan`."""
        plan, clock = self._plan, self._clock
        self._origin = clock.now()
        # On a device, moments are events in its queue: reading the clock waits for nothing.
        for index, instruction in enumerate(plan.instructions):
            self._starts.append(clock.now())
            if progress is not None:
                progress.reach(index, self._starts[-1])
            try:
                self._execute(instruction)
            except (RunError, InputError) as error:
                raise RunError(f"{describe_step(plan, index)}: {error}") from error
            except Exception as error:
                cause = f"{type(error).__name__}: {error}"
                raise ExecutionError(f"{describe_step(plan, index)}: {cause}") from error
            self._ends.append(clock.now())
        if progress is not None:
            progress.reach(len(plan.instructions), self._ends[-1])

    @property
    def is_busy(self) -> bool:
        """Whether the device has not finished yet; does not wait for it."""
        return not self._clock.has_passed(self._ends[-1])

    def finish(self) -> IterationTrace:
        """Frees buffers and waits for the device; to be called once."""
        plan = self._plan
        # Freed before the stage starts its next account of memory, in which they are counted again.
        self._transport.clear()
        try:
            report = self._stage.finish_iteration()
        except RunError as error:
            # An error of the last instruction, the update, shows only when the device has run it.
            raise RunError(f"{describe_step(plan, len(plan.instructions) - 1)}: {error}") from error
        return IterationTrace(
            iteration=plan.iteration,
            rank=plan.rank,
            start_ms=self._since_start(self._starts),
            end_ms=self._since_start(self._ends),
            **asdict(report),
        )

    def _since_start(self, moments: Sequence[Any]) -> tuple[float, ...]:
        return tuple(self._clock.ms_between(self._origin, moment) for moment in moments)

    def _execute(self, instruction: Instruction) -> None:
        """Executes one instruction; its class defines its meaning."""
        match instruction:
            case Load(i):
                self._stage.load(i, self._plan.microbatches[i])
            case Forward(i):
                # Taken out of the inbox, which would keep it longer than the plan's memory assumes.
                activation = self._inbox.pop((Payload.ACTIVATION, i), None)
                splits = self._splits_backward
                sent = self._stage.forward(i, activation, split_backward=splits)
                self._put(Payload.ACTIVATION, i, sent)
            case Backward(i):
                self._expect_end(i)
                self._put(Payload.GRADIENT, i, self._backward(i))
            case BackwardInput(i):
                self._put(Payload.GRADIENT, i, self._backward(i))
            case BackwardWeight(i):
                self._expect_end(i)
                self._stage.backward_weight(i)
            case StartSend(i, payload, peer):
                self._transport.start_send(i, payload, peer, self._outbox.pop((payload, i)))
            case WaitSend(i, payload):
                self._transport.wait_send(i, payload)
            case StartReceive(i, payload, peer, slot):
                shape = self._plan.received_shape(i, payload)
                self._transport.start_receive(i, payload, peer, shape, slot=slot)
            case WaitReceive(i, payload):
                self._inbox[payload, i] = self._transport.wait_receive(i, payload)
            case ReduceGradients():
                self._stage.reduce_gradients()
            case StepOptimizer():
                self._stage.step_optimizer()
            case _:
                assert_never(instruction)

    def _expect_end(self, i: int) -> None:
        # Before the pass: gradients that it completes are reduced over replicas while it runs.
        self._n_unfinished -= 1
        if self._n_unfinished == 0:
            self._stage.expect_last_backward(i)

    def _backward(self, i: int) -> Tensor | None:
        return self._stage.backward(i, self._inbox.pop((Payload.GRADIENT, i), None))

    def _put(self, payload: Payload, microbatch: int, tensor: Tensor | None) -> None:
        if tensor is not None:
            self._outbox[payload, microbatch] = tensor


def launch_plan(
    plan: RankPlan,
    stage: Stage[Tensor],
    transport: Transport[Tensor],
    clock: Clock[Any] = HOST_CLOCK,
    *,
    progress: Progress | None = None,
) -> LaunchedPlan[Tensor]:
    """Executes a plan, instruction by instruction, without waiting for the device.

    `clock`: Clock that is read around every instruction and evaluated after the iteration. Raises
    `RunError`: An instruction failed for a reason that ends the run. Raises `ExecutionError`: An
    instruction failed unexpectedly.
    """
    launched = LaunchedPlan(plan, stage, transport, clock)
    launched.launch(progress)
    return launched
