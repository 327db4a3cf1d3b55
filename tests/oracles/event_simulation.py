"""The simulator as one would explain it: a clock goes from event to event. Slow and plain."""

from dataclasses import dataclass, field

from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.planner.cost.cost_model import StageCosts
from dynapipe_hpc.planner.schedule.schedule_rule import Pass, PassKind, Schedule

Interval = tuple[float, float]


@dataclass
class Sender:
    """A queue of tensors that leave a stage one at a time."""

    queue: list[tuple[Pass, int]] = field(default_factory=list)
    sending: tuple[Pass, int] | None = None
    until_ms: float = 0.0


@dataclass
class StageState:
    """A stage that runs its passes from a list."""

    to_run: list[Pass]
    arrived: set[Pass] = field(default_factory=set)
    running: Pass | None = None
    until_ms: float = 0.0
    kept_bytes: float = 0.0
    splits_backward: bool = False
    memory_bytes: list[float] = field(default_factory=list)


class EventSimulation:
    """Runs a schedule with a clock and records when passes and transfers happen."""

    def __init__(self, schedule: Schedule, costs: StageCosts, link: Link) -> None:
        self.costs = costs
        self.link = link
        self.now_ms = 0.0
        self.passes_ms: dict[tuple[int, Pass], Interval] = {}
        self.sends_ms: dict[tuple[int, Pass], Interval] = {}
        self.stages = [
            StageState(list(passes), splits_backward=any(p.kind is PassKind.WEIGHT for p in passes))
            for passes in schedule.passes
        ]
        n_senders = 2 if link.full_duplex else 1
        self.senders = [[Sender() for _ in range(n_senders)] for _ in self.stages]
        self.stages[0].arrived = {Pass(PassKind.FORWARD, i) for i in range(costs.n_microbatches)}
        self.run()

    def run(self) -> None:
        while True:
            while self.something_happens():
                pass
            ends = [s.until_ms for s in self.stages if s.running]
            ends += [x.until_ms for senders in self.senders for x in senders if x.sending]
            if not ends:
                return
            self.now_ms = min(ends)

    def something_happens(self) -> bool:
        """Ends or starts one pass or transfer, if one is due."""
        return any(
            self.end_pass(s) or self.start_pass(s) or self.move_tensors(s)
            for s in range(len(self.stages))
        )

    def end_pass(self, s: int) -> bool:
        """Ends the running pass and queues what it produced."""
        stage = self.stages[s]
        if stage.running is None or stage.until_ms > self.now_ms:
            return False
        ended, stage.running = stage.running, None
        last = PassKind.WEIGHT if stage.splits_backward else PassKind.BACKWARD
        if ended.kind is last:
            stage.kept_bytes -= float(self.costs.stored_bytes[ended.microbatch, s])
        if ended.kind is PassKind.WEIGHT:
            return True
        if ended.kind is PassKind.BACKWARD:
            stage.arrived.add(Pass(PassKind.WEIGHT, ended.microbatch))
        receiver = s + 1 if ended.kind is PassKind.FORWARD else s - 1
        if receiver == len(self.stages):
            stage.arrived.add(Pass(PassKind.BACKWARD, ended.microbatch))
        elif receiver >= 0:
            senders = self.senders[s]
            senders[ended.kind if len(senders) == 2 else 0].queue.append((ended, receiver))
        return True

    def start_pass(self, s: int) -> bool:
        """Starts the next pass of the list if the stage is free and the input is there."""
        stage = self.stages[s]
        if stage.running or not stage.to_run or stage.to_run[0] not in stage.arrived:
            return False
        begun = stage.running = stage.to_run.pop(0)
        cell = (begun.microbatch, s)
        transient = self.costs.backward_transient_bytes[cell]
        if begun.kind is PassKind.FORWARD:
            transient = self.costs.forward_transient_bytes[cell]
            stage.kept_bytes += float(self.costs.stored_bytes[cell])
        stage.memory_bytes.append(stage.kept_bytes + float(transient))
        stage.until_ms = self.now_ms + self.duration_ms(begun, s)
        self.passes_ms[s, begun] = (self.now_ms, stage.until_ms)
        return True

    def duration_ms(self, pass_: Pass, s: int) -> float:
        cell = (pass_.microbatch, s)
        weight_ms = float(self.costs.weight_ms[cell])
        match pass_.kind:
            case PassKind.FORWARD:
                return float(self.costs.forward_ms[cell])
            case PassKind.BACKWARD if self.stages[s].splits_backward:
                whole_ms, more_ms = self.costs.backward_ms[cell], self.costs.splitting_ms[cell]
                return float(whole_ms) - weight_ms + float(more_ms)
            case PassKind.BACKWARD:
                return float(self.costs.backward_ms[cell])
            case PassKind.WEIGHT:
                return weight_ms

    def move_tensors(self, s: int) -> bool:
        """Delivers a tensor, or starts to send the next one."""
        for sender in self.senders[s]:
            if sender.sending and sender.until_ms <= self.now_ms:
                (sent, receiver), sender.sending = sender.sending, None
                self.stages[receiver].arrived.add(sent)
                return True
            if sender.queue and not sender.sending:
                sender.sending = sender.queue.pop(0)
                sent, receiver = sender.sending
                n_bytes = float(self.costs.boundary_bytes[sent.microbatch, min(s, receiver)])
                transfer_ms = self.link.latency_ms + n_bytes / self.link.bytes_per_ms
                sender.until_ms = self.now_ms + transfer_ms
                self.sends_ms[s, sent] = (self.now_ms, sender.until_ms)
                return True
        return False
