"""Executes plans step by step under the rules of `check_plans`, as plainly as possible."""

from collections.abc import Sequence

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

Start = StartSend | StartReceive


def plans_execute(plans: Sequence[RankPlan]) -> bool:
    """Whether the plans of one replica, by stage, run to their end and do all there is to do."""
    pipeline = _Pipeline(plans)
    while any(pipeline.step(stage) for stage in range(len(plans))):
        pass
    return all(pipeline.is_done(stage) for stage in range(len(plans)))


class _Pipeline:
    """What the stages have done. Every question is answered by searching through it."""

    def __init__(self, plans: Sequence[RankPlan]) -> None:
        self._plans = plans
        self._done: list[list[Instruction]] = [[] for _ in plans]

    def is_done(self, stage: int) -> bool:
        plan, done = self._plans[stage], self._done[stage]
        backwards = [self._last_pass(stage, i) for i in range(len(plan.microbatches))]
        waits = [WaitSend(s.microbatch, s.payload) for s in done if isinstance(s, StartSend)]
        return all(must in done for must in [*backwards, *waits, StepOptimizer()]) and done == list(
            plan.instructions
        )

    def step(self, stage: int) -> bool:
        """Runs the next instruction of a stage, if it can run."""
        plan, done = self._plans[stage], self._done[stage]
        if done == list(plan.instructions):
            return False
        instruction = plan.instructions[len(done)]
        if not self._may_run(stage, instruction):
            return False
        done.append(instruction)
        return self._bytes(stage) <= plan.memory.limit

    def _may_run(self, stage: int, instruction: Instruction) -> bool:
        done, first, last = self._done[stage], stage == 0, stage == len(self._plans) - 1
        if instruction in done or StepOptimizer() in done:
            return False
        if ReduceGradients() in done:
            return instruction == StepOptimizer()
        match instruction:
            case Load(i):
                return i < len(self._plans[stage].microbatches)
            case Forward(i):
                received = first or WaitReceive(i, Payload.ACTIVATION) in done
                return Load(i) in done and received
            case Backward(i) | BackwardInput(i):
                received = last or WaitReceive(i, Payload.GRADIENT) in done
                whole = isinstance(instruction, Backward)
                return whole != self._splits(stage) and Forward(i) in done and received
            case BackwardWeight(i):
                return BackwardInput(i) in done
            case StartSend(i, payload):
                makers = {Forward(i)} if payload is Payload.ACTIVATION else _backwards(i)
                made = any(maker in done for maker in makers)
                return made and self._may_start(stage, instruction)
            case StartReceive(slot=slot):
                users = [
                    s.microbatch for s in done if isinstance(s, StartReceive) and s.slot == slot
                ]
                free = all(self._last_pass(stage, i) in done for i in users)
                return free and self._may_start(stage, instruction)
            case WaitSend(i, payload):
                return self._is_over(stage, StartSend, i, payload)
            case WaitReceive(i, payload):
                return self._is_over(stage, StartReceive, i, payload)
            case ReduceGradients():
                return True
        return False

    def _splits(self, stage: int) -> bool:
        passes = self._plans[stage].instructions
        return any(isinstance(p, BackwardInput | BackwardWeight) for p in passes)

    def _last_pass(self, stage: int, i: int) -> Instruction:
        return BackwardWeight(i) if self._splits(stage) else Backward(i)

    def _may_start(self, stage: int, start: Start) -> bool:
        again = [
            s
            for s in self._done[stage]
            if isinstance(s, type(start)) and _tensor(s) == _tensor(start)
        ]
        upwards = isinstance(start, StartSend) == (start.payload is Payload.ACTIVATION)
        neighbour = stage + 1 if upwards else stage - 1
        exists = 0 <= neighbour < len(self._plans)
        return exists and start.peer == self._plans[neighbour].rank and not again

    def _is_over(self, stage: int, kind: type[Start], i: int, payload: Payload) -> bool:
        for start in self._done[stage]:
            if isinstance(start, kind) and _tensor(start) == (i, payload):
                peer = next(k for k, plan in enumerate(self._plans) if plan.rank == start.peer)
                ours, theirs = self._queue(stage, peer), self._queue(peer, stage)
                end = ours.index(start) + 1
                return list(map(_tensor, ours[:end])) == list(map(_tensor, theirs[:end]))
        return False

    def _queue(self, stage: int, peer: int) -> list[Start]:
        """The operations that a stage has started with a peer."""
        rank = self._plans[peer].rank
        return [s for s in self._done[stage] if isinstance(s, Start) and s.peer == rank]

    def _bytes(self, stage: int) -> int:
        """Memory during the last instruction."""
        memory, done = self._plans[stage].memory, self._done[stage]
        kept = [
            stored
            for i, stored in enumerate(memory.stored)
            if Forward(i) in done and self._last_pass(stage, i) not in done[:-1]
        ]
        match done[-1]:
            case Forward(i):
                transient = memory.forward_transient[i]
            case Backward(i) | BackwardInput(i) | BackwardWeight(i):
                transient = memory.backward_transient[i]
            case _:
                transient = 0
        return memory.static + sum(kept) + transient


def _backwards(i: int) -> set[Instruction]:
    return {Backward(i), BackwardInput(i)}


def _tensor(start: Start) -> tuple[int, Payload]:
    return (start.microbatch, start.payload)
