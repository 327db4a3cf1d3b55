"""List scheduling, slowly: a clock that visits every moment at which anything happens."""

from collections.abc import Iterator

import numpy as np
from tests.examples.stage_costs import schedule_of

from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.planner.cost.cost_model import FloatArray, StageCosts
from dynapipe_hpc.planner.schedule.schedule_rule import Pass, PassKind


class ListSchedule:
    """Runs micro-batches 0, 1, ... and records what every stage does. Times must be positive."""

    def __init__(
        self,
        costs: StageCosts,
        limit_bytes: FloatArray,
        link: Link,
        *,
        split_backward: bool,
        alternates: bool = False,
    ) -> None:
        self.alternates = alternates
        self.costs, self.limit_bytes, self.link = costs, limit_bytes, link
        later = costs.later_slices
        self.n_later = [0] * costs.n_microbatches if later is None else later.tolist()
        firsts = (i for i in range(costs.n_microbatches) if i == 0 or self.n_later[i - 1] == 0)
        self.returns = [j for i in firsts for j in reversed(self.together(i))]
        gradient_ms, weight_ms = costs.backward_ms, 0 * costs.weight_ms
        if split_backward:
            gradient_ms = gradient_ms - costs.weight_ms + costs.splitting_ms
            weight_ms = costs.weight_ms
        self.pass_ms = (costs.forward_ms, gradient_ms, weight_ms)
        self.last_kind = PassKind.WEIGHT if split_backward else PassKind.BACKWARD
        stages = range(costs.n_stages)
        self.done: list[list[Pass]] = [[] for _ in stages]
        self.busy_until_ms = [0.0 for _ in stages]
        self.link_until_ms: dict[tuple[int, int], float] = {}
        self.arrival_ms = {(0, Pass(PassKind.FORWARD, i)): 0.0 for i in range(costs.n_microbatches)}
        n_passes = (self.last_kind + 1) * costs.n_microbatches
        now_ms = 0.0
        while any(len(done) < n_passes for done in self.done):
            for stage in stages:
                self.start_something(stage, now_ms)
            moments = [*self.busy_until_ms, *self.arrival_ms.values()]
            now_ms = min((m for m in moments if m > now_ms), default=now_ms)
        self.makespan_ms = max(self.busy_until_ms)
        self.schedule = schedule_of(self.done)

    def reduced_ms(self, reduce_ms: FloatArray) -> float:
        """Time at which all gradients are reduced, each stage's so long after its last pass."""
        return float(max(np.array(self.busy_until_ms) + reduce_ms))

    def together(self, i: int) -> range:
        """The slices of a sample from one on."""
        return range(i, i + self.n_later[i] + 1)

    def start_something(self, stage: int, now_ms: float) -> None:
        if self.busy_until_ms[stage] > now_ms:
            return
        for next_pass in self.by_preference(stage):
            if self.arrival_ms.get((stage, next_pass), now_ms + 1) <= now_ms and self.has_room(
                stage, next_pass
            ):
                self.run(stage, next_pass, now_ms)
                return

    def by_preference(self, stage: int) -> Iterator[Pass]:
        """Passes that may be next, the first choice first."""
        for kind in self.preferred(stage):
            order = range(len(self.returns)) if kind is PassKind.FORWARD else self.returns
            yield from (Pass(kind, i) for i in order[self.n_done(stage, kind) :][:1])

    def preferred(self, stage: int) -> tuple[PassKind, ...]:
        """Kinds of pass, the first choice first."""
        on_the_way = [p.kind for p in self.done[stage] if p.kind is not PassKind.WEIGHT]
        forward = Pass(PassKind.FORWARD, self.n_done(stage, PassKind.FORWARD))
        has_come = self.arrival_ms.get((stage, forward), np.inf) <= self.busy_until_ms[stage]
        if self.alternates and has_come and on_the_way and on_the_way[-1] is PassKind.BACKWARD:
            return PassKind.FORWARD, PassKind.BACKWARD, PassKind.WEIGHT
        return PassKind.BACKWARD, PassKind.FORWARD, PassKind.WEIGHT

    def n_done(self, stage: int, kind: PassKind) -> int:
        return sum(p.kind == kind for p in self.done[stage])

    def has_room(self, stage: int, next_pass: Pass) -> bool:
        i = next_pass.microbatch
        match next_pass.kind:
            case PassKind.FORWARD:
                is_later = i > 0 and self.n_later[i - 1] > 0
                return is_later or self.may_enter(stage, i)
            # It can wait until W has freed memory.
            case PassKind.BACKWARD if self.n_done(stage, self.last_kind) < self.n_done(
                stage, PassKind.BACKWARD
            ):
                kept = self.costs.stored_bytes[self.in_flight(stage), stage].sum()
                needed = kept + self.costs.backward_transient_bytes[i, stage]
                return bool(needed <= self.limit_bytes[stage])
            case _:
                return True

    def may_enter(self, stage: int, i: int) -> bool:
        """Whether a sample fits, now and while each slice and each one in flight goes back."""
        held = [*self.in_flight(stage), *reversed(self.together(i))]
        kept = self.costs.stored_bytes[held, stage].sum()
        needs = [kept + self.costs.forward_transient_bytes[i, stage]]
        for j in held:
            needs.append(kept + self.costs.backward_transient_bytes[j, stage])
            kept -= self.costs.stored_bytes[j, stage]
        return bool(max(needs) <= self.limit_bytes[stage])

    def in_flight(self, stage: int) -> list[int]:
        """Micro-batches that have entered and are not freed, in the order of their return."""
        done = self.done[stage]
        return [
            i
            for i in self.returns
            if Pass(PassKind.FORWARD, i) in done and Pass(self.last_kind, i) not in done
        ]

    def run(self, stage: int, pass_: Pass, now_ms: float) -> None:
        end_ms = now_ms + self.pass_ms[pass_.kind][pass_.microbatch, stage]
        self.done[stage].append(pass_)
        self.busy_until_ms[stage] = end_ms
        if pass_.kind is PassKind.WEIGHT:
            return
        backward = pass_.kind is PassKind.BACKWARD
        if backward and self.last_kind is PassKind.WEIGHT:
            self.arrival_ms[stage, Pass(PassKind.WEIGHT, pass_.microbatch)] = end_ms
        target = stage - 1 if backward else stage + 1
        if target == self.costs.n_stages:
            self.arrival_ms[stage, Pass(PassKind.BACKWARD, pass_.microbatch)] = end_ms
        elif target >= 0:
            way = (stage, target if self.link.full_duplex else 0)
            start_ms = max(end_ms, self.link_until_ms.get(way, 0.0))
            n_bytes = self.costs.boundary_bytes[pass_.microbatch, min(stage, target)]
            arrival_ms = start_ms + (self.link.latency_ms + n_bytes / self.link.bytes_per_ms)
            self.link_until_ms[way] = self.arrival_ms[target, pass_] = arrival_ms
