"""Plans whose passes take other times than predicted: fixed order, plan as a hint, 1F1B.

    python benchmarks/jitter.py [--json OUT.json]

Batches, model and machines of `long_tails.py`, planned without slices and with them. Then times of
passes are disturbed: each by a factor drawn evenly from 1 - x to 1 + x, or all of the busiest stage
by 1 + x; the plan does not know. `fixed` executes the order of the plan, as the executor does;
`hint` starts, of the passes whose inputs are there and which memory allows, the one that comes
first in the plan. `whole` is the plan of whole samples, `1F1B` the one whose micro-batches are
chosen for 1F1B, both in fixed order. `work` is the time of the busiest stage. All are over the time
of the undisturbed plan with slices; means over batches and draws. "stuck" counts runs by hint that
reached a dead end.

Transfers take latency and bytes over the rate of the link, and do not wait for each other. Without
disturbance all plans take what the planner's own simulation says, or this ends with an error.
"""

import argparse
import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from statistics import mean

import numpy as np

from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.choose.choice import Choice
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray, StageCosts
from dynapipe_hpc.planner.schedule.config import ScheduleConfig
from dynapipe_hpc.planner.schedule.schedule_rule import PassKind, Schedule
from long_tails import POINTS, Point, batches, machine, planned
from measured import print_table, write_json

CHOSEN = [POINTS[i] for i in (1, 3, 4)]
N_BATCHES, N_DRAWS = 6, 5
SPREADS = (0.05, 0.1, 0.2)
IN_TURN = ScheduleConfig(rules=("1f1b",))
N_KINDS = len(PassKind)
FORWARD, BACKWARD, WEIGHT = PassKind


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """Times of passes and transfers, and the memory for them.

    Attributes:
        pass_ms: Times of passes, shape (n_stages, 3 * n_microbatches), by their codes.
        send_ms: Times of transfers of a stage's outputs, shape (n_stages, n_microbatches).
        costs: Costs of the micro-batches, for memory and slices.
        limit_bytes: Memory for activations, shape (n_stages,).
    """

    pass_ms: FloatArray
    send_ms: FloatArray
    costs: StageCosts
    limit_bytes: FloatArray

    def disturbed(self, factors: FloatArray) -> "Machine":
        """The same with other times of passes."""
        return Machine(self.pass_ms * factors, self.send_ms, self.costs, self.limit_bytes)


def machine_of(
    costs: StageCosts, cluster: Cluster, limit_bytes: FloatArray, *, is_split: bool
) -> Machine:
    """Times as predicted, for whole or split backward passes."""
    pass_ms = np.empty((costs.n_stages, N_KINDS * costs.n_microbatches))
    pass_ms[:, FORWARD::N_KINDS] = costs.forward_ms.T
    weight_ms = costs.weight_ms if is_split else np.zeros_like(costs.weight_ms)
    splitting_ms = costs.splitting_ms if is_split else 0.0
    pass_ms[:, BACKWARD::N_KINDS] = (costs.backward_ms - weight_ms + splitting_ms).T
    pass_ms[:, WEIGHT::N_KINDS] = weight_ms.T
    link = cluster.link
    return Machine(
        pass_ms, link.latency_ms + costs.boundary_bytes.T / link.bytes_per_ms, costs, limit_bytes
    )


class Stage:
    """One stage of an execution."""

    def __init__(self, order: Sequence[int], later_slices: Sequence[int]) -> None:
        """Makes a stage that executes passes, given by their codes."""
        self.waiting = list(order)
        self.arrived_ms: dict[int, float] = {}
        self.ends_ms: dict[int, float] = {}
        self.free_ms = 0.0
        self.kept_bytes = 0.0
        self._later = later_slices

    def is_ready(self, code: int, now_ms: float) -> bool:
        """Whether a pass's input is there, and slices of its sample that come first are done."""
        if self.arrived_ms.get(code, np.inf) > now_ms:
            return False
        i, kind = divmod(code, N_KINDS)
        if kind == FORWARD and i and self._later[i - 1]:
            return code - N_KINDS in self.ends_ms
        if kind == BACKWARD and self._later[i]:
            return code + N_KINDS in self.ends_ms
        return True


def execute(schedule: Schedule, machine: Machine, *, by_hint: bool) -> float:
    """Time of the last pass; infinite if no pass can start any more."""
    costs = machine.costs
    later = (
        np.zeros(costs.n_microbatches, int) if costs.later_slices is None else costs.later_slices
    )
    is_split = _is_split(schedule)
    stages = [Stage(order, later.tolist()) for order in schedule.codes.tolist()]
    for i in range(costs.n_microbatches):
        stages[0].arrived_ms[N_KINDS * i + FORWARD] = 0.0
    moments = [0.0]
    while moments:
        now_ms = heapq.heappop(moments)
        for s, stage in enumerate(stages):
            if stage.free_ms > now_ms:
                continue
            code = next(_startable(stage, s, machine, now_ms, by_hint=by_hint), None)
            if code is None:
                continue
            stage.waiting.remove(code)
            i, kind = divmod(code, N_KINDS)
            end_ms = now_ms + machine.pass_ms[s, code]
            stage.free_ms = stage.ends_ms[code] = end_ms
            stage.kept_bytes += _kept_bytes(machine, s, i, kind, is_split=is_split)
            for peer, arriving in _sends(s, i, kind, len(stages)):
                delay_ms = machine.send_ms[s, i] if peer != s and kind == FORWARD else 0.0
                if peer != s and kind == BACKWARD:
                    delay_ms = machine.send_ms[peer, i]
                stages[peer].arrived_ms[arriving] = end_ms + delay_ms
                heapq.heappush(moments, end_ms + delay_ms)
            heapq.heappush(moments, end_ms)
    if any(stage.waiting for stage in stages):
        return np.inf
    return max(stage.free_ms for stage in stages)


def _startable(
    stage: Stage, s: int, machine: Machine, now_ms: float, *, by_hint: bool
) -> Iterator[int]:
    """Passes that may start now, in the order of the plan."""
    costs = machine.costs
    for code in stage.waiting if by_hint else stage.waiting[:1]:
        if not stage.is_ready(code, now_ms):
            continue
        i, kind = divmod(code, N_KINDS)
        needed = stage.kept_bytes + costs.stored_bytes[i, s] + costs.forward_transient_bytes[i, s]
        if not by_hint or kind != FORWARD or needed <= machine.limit_bytes[s]:
            yield code


def _kept_bytes(machine: Machine, s: int, i: int, kind: int, *, is_split: bool) -> float:
    last = WEIGHT if is_split else BACKWARD
    sign = {FORWARD: 1, last: -1}.get(PassKind(kind), 0)
    return float(sign * machine.costs.stored_bytes[i, s])


def _sends(s: int, i: int, kind: int, n_stages: int) -> list[tuple[int, int]]:
    """Stages and passes for which the end of a pass is an input."""
    code = N_KINDS * i
    if kind == FORWARD:
        return [(s + 1, code + FORWARD)] if s + 1 < n_stages else [(s, code + BACKWARD)]
    if kind == BACKWARD:
        return [(s, code + WEIGHT), *([(s - 1, code + BACKWARD)] if s else [])]
    return []


def factors(
    machine: Machine, busiest: int, name: str, spread: float, seed: list[int]
) -> FloatArray:
    """Factors of the times of passes."""
    shape = machine.pass_ms.shape
    if name == "random":
        return np.random.default_rng(seed).uniform(1 - spread, 1 + spread, shape)
    slow = np.ones(shape)
    slow[busiest] += spread
    return slow


def machines(choice: Choice, cost: CostModel, cluster: Cluster) -> tuple[Schedule, Machine]:
    """The one pipeline of a plan, and the machine that executes it."""
    (pipeline,) = choice.pipelines
    limit = cluster.device_memory_bytes - cost.static_bytes
    is_split = _is_split(pipeline.schedule)
    return pipeline.schedule, machine_of(pipeline.costs, cluster, limit, is_split=is_split)


def _is_split(schedule: Schedule) -> bool:
    return bool((schedule.codes % N_KINDS == WEIGHT).any())


def measured(point: Point) -> dict[str, dict[str, float]]:
    """Rows of the table for the batches of a point."""
    cost, cluster = machine(point)
    ratios: dict[tuple[str, float], list[dict[str, float]]] = {}
    for seed, samples in enumerate(islice(batches(point), N_BATCHES)):
        choices = {
            "fixed": planned(samples, cost, cluster, "auto")[0],
            "whole": planned(samples, cost, cluster, "off")[0],
            "1F1B": planned(samples, cost, cluster, "off", IN_TURN)[0],
        }
        plans = {name: machines(choice, cost, cluster) for name, choice in choices.items()}
        for name, choice in choices.items():
            _check_agreement(execute(*plans[name], by_hint=False), choice)
        planned_ms = execute(*plans["fixed"], by_hint=False)
        busiest = int(plans["fixed"][1].pass_ms.sum(1).argmax())
        for name, spread, draw in disturbances():
            # The same seed disturbs alike what has as many passes.
            now = {
                key: (schedule, each.disturbed(factors(each, busiest, name, spread, [seed, draw])))
                for key, (schedule, each) in plans.items()
            }
            times = {key: execute(*each, by_hint=False) for key, each in now.items()}
            times["hint"] = execute(*now["fixed"], by_hint=True)
            times["work"] = now["fixed"][1].pass_ms.sum(1).max()
            row = {key: ms / planned_ms for key, ms in times.items()}
            ratios.setdefault((name, spread), []).append(row)
    return {
        f"{point}; {name} {spread:.0%}": {
            **{key: mean(r[key] for r in rows if np.isfinite(r[key])) for key in rows[0]},
            "stuck": sum(not np.isfinite(r["hint"]) for r in rows),
        }
        for (name, spread), rows in ratios.items()
    }


def _check_agreement(executed_ms: float, choice: Choice) -> None:
    (pipeline,) = choice.pipelines
    if not np.isclose(executed_ms, pipeline.timeline.makespan_ms, rtol=1e-12, atol=0):
        raise RuntimeError(f"{executed_ms} ms here, {pipeline.timeline.makespan_ms} ms as planned")


def disturbances() -> Iterator[tuple[str, float, int]]:
    """Kinds of disturbances, how large they are, and numbers of draws."""
    yield "random", 0.0, 0
    yield from product(["random"], SPREADS, range(N_DRAWS))
    yield from product(["one stage"], SPREADS[1:], [0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    for point in CHOSEN:
        results |= measured(point)
    columns = next(iter(results.values()))
    print_table(results, {name: "{:.3f}" if name != "stuck" else "{:.0f}" for name in columns})
    if arguments.json:
        write_json(arguments.json, results)


if __name__ == "__main__":
    main()
