"""Executes plans with values that travel, buffers that are overwritten and ranks that block.

It knows nothing of the rules of `check_plans`. Transfers carry no label, as under NCCL: what
two ranks start with each other meets in the order in which each starts it. A start may block, too,
until the peer starts its side. Everything a rank holds is used up exactly once. So a plan works if
all ranks end, with the right gradients and nothing left over. If no rank has anything to do with
gradients, the right activations will do.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from dynapipe_hpc.data.microbatch import PackedRow
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

Value = tuple[object, ...]  # what was computed, from what
NONE: Value = ()
Tensor = tuple[Payload, int]


def plans_execute(plans: Sequence[RankPlan], *, starts_block: bool = False) -> bool:
    """Whether the plans of one replica, by stage, run to their end and do all there is to do."""
    network = _Network(starts_block)
    try:
        trains = not evaluates(plans)
        ranks = {
            s: _Rank(plan, s, len(plans), network, trains).run() for s, plan in enumerate(plans)
        }
        while ranks:
            network.has_changed = False
            ended = [stage for stage, run in ranks.items() if next(run, "end") == "end"]
            for stage in ended:
                del ranks[stage]
            if not ended and not network.has_changed:
                return False  # all that are left wait for ever
    except _BrokenError:
        return False
    return True


def evaluates(plans: Sequence[RankPlan]) -> bool:
    """Whether the plans of one replica are all forward passes and transfers."""
    training = Backward | BackwardInput | BackwardWeight | ReduceGradients | StepOptimizer
    steps = [step for plan in plans for step in plan.instructions]
    has_forward = all(any(isinstance(s, Forward) for s in plan.instructions) for plan in plans)
    return has_forward and not any(isinstance(step, training) for step in steps)


class _BrokenError(Exception):
    """Something a real executor, or the training, would not survive."""


def _require(holds: bool) -> None:
    if not holds:
        raise _BrokenError


@dataclass(eq=False)
class _Transfer:
    is_send: bool
    value: Value = NONE  # sent, or received
    slot: int = -1
    is_done: bool = False


class _Network:
    """Matches what ranks start, pair by pair, in order."""

    def __init__(self, starts_block: bool) -> None:
        self.starts_block = starts_block
        self.has_changed = False
        self._sides: dict[tuple[int, int], list[_Transfer]] = {}

    def start(self, rank: int, peer: int, transfer: _Transfer) -> None:
        self.has_changed = True
        side = self._sides.setdefault((rank, peer), [])
        other = self._sides.setdefault((peer, rank), [])
        side.append(transfer)
        if rank != peer and len(other) >= len(side):
            counterpart = other[len(side) - 1]
            _require(transfer.is_send != counterpart.is_send)
            pair = (transfer, counterpart)
            source, target = pair if transfer.is_send else pair[::-1]
            target.value = source.value
            source.is_done = target.is_done = True


@dataclass
class _Kept:
    """Data that a micro-batch leaves on a stage between its passes: values, and where they lie."""

    inputs: Value
    inputs_in: _Transfer | None
    gradient: Value = NONE
    gradient_in: _Transfer | None = None
    is_half_done: bool = False


@dataclass
class _Rank:
    """A rank and everything it holds."""

    plan: RankPlan
    stage: int
    n_stages: int
    network: _Network
    trains: bool
    loaded: set[int] = field(default_factory=set)
    started: dict[tuple[bool, Tensor], _Transfer] = field(default_factory=dict)
    in_slot: dict[int, _Transfer] = field(default_factory=dict)
    inbox: dict[Tensor, _Transfer] = field(default_factory=dict)
    outbox: dict[Tensor, Value] = field(default_factory=dict)
    kept: dict[int, _Kept] = field(default_factory=dict)
    gradients: list[tuple[int, Value, Value]] = field(default_factory=list)
    held_bytes: int = 0
    n_read: dict[int, int] = field(default_factory=dict)  # tokens of sliced samples with keys here

    def run(self) -> Iterator[str]:
        """Executes instruction by instruction; yields when it has to wait."""
        passes = {type(step) for step in self.plan.instructions}
        _require(not (Backward in passes and passes & {BackwardInput, BackwardWeight}))
        self.held_bytes = self.plan.memory.static
        self._need(0)
        instructions = iter(self.plan.instructions)
        for instruction in instructions:
            if isinstance(instruction, ReduceGradients):
                break
            yield from self._execute(instruction)
        self._check_work()
        _require(list(instructions) == [StepOptimizer()] * self.trains)

    def _execute(self, instruction: Instruction) -> Iterator[str]:
        match instruction:
            case Load(i):
                _require(i < len(self.plan.microbatches) and i not in self.loaded)
                self.loaded.add(i)
            case Forward(i):
                self._forward(i)
            case Backward(i) | BackwardInput(i):
                self._backward(i)
                if isinstance(instruction, Backward):
                    self._weights(i)
            case BackwardWeight(i):
                _require(i in self.kept and self.kept[i].is_half_done)
                self._need(self.plan.memory.backward_transient[i])
                self._weights(i)
            case StartSend(i, payload, peer):
                _require((payload, i) in self.outbox)
                transfer = _Transfer(True, self.outbox[payload, i])
                yield from self._start((True, (payload, i)), peer, transfer)
            case StartReceive(i, payload, peer, slot):
                transfer = self.in_slot[slot] = _Transfer(False, slot=slot)
                yield from self._start((False, (payload, i)), peer, transfer)
            case WaitSend(i, payload):
                yield from self._wait((True, (payload, i)))
                del self.outbox[payload, i]
            case WaitReceive(i, payload):
                key = (False, (payload, i))
                transfer = self.started.get(key, _Transfer(False))
                yield from self._wait(key)
                _require((payload, i) not in self.inbox)
                self.inbox[payload, i] = transfer
            case ReduceGradients() | StepOptimizer():
                raise _BrokenError
            case _:
                assert_never(instruction)

    def _start(self, key: tuple[bool, Tensor], peer: int, transfer: _Transfer) -> Iterator[str]:
        _require(key not in self.started)
        self.started[key] = transfer
        self.network.start(self.plan.rank, peer, transfer)
        while self.network.starts_block and not transfer.is_done:
            yield "waits"

    def _wait(self, key: tuple[bool, Tensor]) -> Iterator[str]:
        _require(key in self.started)
        while not self.started[key].is_done:
            yield "waits"
        del self.started[key]

    def _forward(self, i: int) -> None:
        _require(i in self.loaded and i not in self.kept)
        self.loaded.remove(i)
        if part := _slice(self.plan, i):
            sample_id, begin, end = part
            _require(self.n_read.setdefault(sample_id, 0) == begin)
            self.n_read[sample_id] = end
        received = self._take(Payload.ACTIVATION, i, is_first_or_last=self.stage == 0)
        self.kept[i] = _Kept(self._read(received), received)
        self.held_bytes += self.plan.memory.stored[i]
        self._need(self.plan.memory.forward_transient[i])
        if self.stage < self.n_stages - 1:
            self._put(Payload.ACTIVATION, i, _activation(self.stage, i, self.kept[i].inputs))
        if not self.trains:
            self.gradients.append((i, self.kept.pop(i).inputs, NONE))

    def _backward(self, i: int) -> None:
        _require(i in self.kept and not self.kept[i].is_half_done)
        kept = self.kept[i]
        if part := _slice(self.plan, i):
            sample_id, begin, end = part
            _require(self.n_read[sample_id] == end)  # the gradients of its keys are complete
            self.n_read[sample_id] = begin
        last = self.stage == self.n_stages - 1
        kept.gradient_in = self._take(Payload.GRADIENT, i, is_first_or_last=last)
        kept.gradient = self._read(kept.gradient_in)
        kept.is_half_done = True
        self._need(self.plan.memory.backward_transient[i])
        _require(self._read(kept.inputs_in) == kept.inputs)
        if self.stage > 0:
            self._put(Payload.GRADIENT, i, _gradient(self.stage, i, kept.gradient))

    def _weights(self, i: int) -> None:
        kept = self.kept.pop(i)
        _require(self._read(kept.inputs_in) == kept.inputs)
        _require(self._read(kept.gradient_in) == kept.gradient)
        self.gradients.append((i, kept.inputs, kept.gradient))
        self.held_bytes -= self.plan.memory.stored[i]

    def _take(self, payload: Payload, i: int, is_first_or_last: bool) -> _Transfer | None:
        if is_first_or_last:
            return None
        _require((payload, i) in self.inbox)
        return self.inbox.pop((payload, i))

    def _read(self, received: _Transfer | None) -> Value:
        """Content of a receive buffer, if nothing else was received into it since."""
        if received is None:
            return NONE
        _require(self.in_slot[received.slot] is received)
        return received.value

    def _put(self, payload: Payload, i: int, value: Value) -> None:
        _require((payload, i) not in self.outbox)
        self.outbox[payload, i] = value

    def _need(self, transient_bytes: int) -> None:
        _require(self.held_bytes + transient_bytes <= self.plan.memory.limit)

    def _check_work(self) -> None:
        """Everything is used up, and the gradients are those of all micro-batches."""
        _require(not (self.loaded or self.started or self.inbox or self.outbox or self.kept))
        expected = [
            (i, _inputs(self.stage, i), _gradient_in(*place) if self.trains else NONE)
            for i in range(len(self.plan.microbatches))
            for place in [(self.stage, i, self.n_stages)]
        ]
        _require(sorted(self.gradients, key=lambda gradient: gradient[0]) == expected)


def _slice(plan: RankPlan, i: int) -> tuple[int, int, int] | None:
    """Sample, begin and end of the slice that a micro-batch holds."""
    microbatch = plan.microbatches[i]
    if not isinstance(microbatch, PackedRow) or microbatch.slice is None:
        return None
    return microbatch.sample_ids[0], microbatch.slice.begin, microbatch.slice.end


def _activation(stage: int, i: int, inputs: Value) -> Value:
    return ("F", stage, i, inputs)


def _gradient(stage: int, i: int, gradient: Value) -> Value:
    return ("B", stage, i, gradient)


def _inputs(stage: int, i: int) -> Value:
    return NONE if stage == 0 else _activation(stage - 1, i, _inputs(stage - 1, i))


def _gradient_in(stage: int, i: int, n_stages: int) -> Value:
    if stage == n_stages - 1:
        return NONE
    return _gradient(stage + 1, i, _gradient_in(stage + 1, i, n_stages))
