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
        return (Pass(kind, self.n_done(stage, kind)) for kind in self.preferred(stage))

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
        n_freed, i = self.n_done(stage, self.last_kind), next_pass.microbatch
        match next_pass.kind:
            case PassKind.FORWARD:
                return self.may_enter(stage, n_freed, i)
            case PassKind.BACKWARD if n_freed < i:  # it can wait until W has freed memory
                kept = self.costs.stored_bytes[
                    n_freed : self.n_done(stage, PassKind.FORWARD), stage
                ]
                needed = kept.sum() + self.costs.backward_transient_bytes[i, stage]
                is_put_off = self.last_kind is PassKind.WEIGHT
                return not is_put_off or bool(needed <= self.limit_bytes[stage])
            case _:
                return True

    def may_enter(self, stage: int, n_freed: int, i: int) -> bool:
        """Whether micro-batch i fits, now and while each one in flight goes back."""
        stored = self.costs.stored_bytes[:, stage]
        needs = [stored[n_freed : i + 1].sum() + self.costs.forward_transient_bytes[i, stage]]
        needs += [
            stored[j : i + 1].sum() + self.costs.backward_transient_bytes[j, stage]
            for j in range(n_freed, i + 1)
        ]
        return bool(max(needs) <= self.limit_bytes[stage])

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


class LightestFirst(ListSchedule):
    """Of the backward passes that have arrived, the one that needs the least memory goes first."""

    def by_preference(self, stage: int) -> Iterator[Pass]:
        """Passes that are not done, the first choice first; forward passes in order."""
        needs = self.costs.backward_transient_bytes[:, stage]
        lightest_first = np.argsort(needs, kind="stable").tolist()
        for kind in (PassKind.BACKWARD, PassKind.FORWARD, PassKind.WEIGHT):
            if kind is PassKind.FORWARD:
                yield Pass(kind, self.n_done(stage, kind))
            else:
                passes = (Pass(kind, i) for i in lightest_first)
                yield from (each for each in passes if each not in self.done[stage])

    def has_room(self, stage: int, next_pass: Pass) -> bool:
        i, in_flight = next_pass.microbatch, self.in_flight(stage)
        kept = self.costs.stored_bytes[in_flight, stage].sum()
        if next_pass.kind is not PassKind.FORWARD:
            needed = kept + self.costs.backward_transient_bytes[i, stage]
            return bool(needed <= self.limit_bytes[stage])
        kept += self.costs.stored_bytes[i, stage]
        needs = [kept + self.costs.forward_transient_bytes[i, stage]]
        for other in sorted(
            [*in_flight, i], key=lambda j: self.costs.backward_transient_bytes[j, stage]
        ):
            needs.append(kept + self.costs.backward_transient_bytes[other, stage])
            kept -= self.costs.stored_bytes[other, stage]
        return bool(max(needs) <= self.limit_bytes[stage])

    def in_flight(self, stage: int) -> list[int]:
        done = self.done[stage]
        entered = [p.microbatch for p in done if p.kind is PassKind.FORWARD]
        return [i for i in entered if Pass(self.last_kind, i) not in done]
