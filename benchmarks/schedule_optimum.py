"""How far are our schedules from the best ones that there are?

    python benchmarks/schedule_optimum.py [--draws N] [--json OUT.json]

Few micro-batches with random uneven costs on few stages, with and without a limit on memory.
Ours: every rule, on the order of injection given and on the one that suits the adaptive rule best,
which is all that a local search on orders can find; micro-batches stay as they are. `refined` then
moves single passes of the best, see planner/schedule/refine.py. Optimum: proven, see
optimal_makespan.py. Excess in per cent; `unproven` are cases without a proof in time, or without
a schedule of ours. `proportional` costs are a size per micro-batch times a factor per stage, with
10 % of noise; `independent` ones are drawn per micro-batch and stage.
"""

import argparse
import math
import statistics
from collections.abc import Iterator
from itertools import permutations, product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dynapipe_hpc.planner.cost.cost_model import FloatArray, StageCosts
from dynapipe_hpc.planner.schedule.config import RULES, SPLIT_RULES
from dynapipe_hpc.planner.schedule.refine import refine
from dynapipe_hpc.planner.schedule.schedule_rule import (
    INSTANT,
    InfeasibleScheduleError,
    Schedule,
    ScheduleRule,
)
from dynapipe_hpc.planner.schedule.simulate import simulate
from dynapipe_hpc.planner.schedule.zb_h1 import zb_h1
from measured import print_table, write_json
from optimal_makespan import NotProvenError, optimal_makespan_ms

REFINING_MOVES = 10_000
COLUMNS = {
    "without_search": "{:.3f}",
    "mean": "{:.3f}",
    "worst": "{:.3f}",
    "optimal": "{:.0f}",
    "refined_mean": "{:.3f}",
    "refined_worst": "{:.3f}",
    "refined_optimal": "{:.0f}",
    "unproven": "{:.0f}",
    "cases": "{:.0f}",
}


class Case(NamedTuple):
    """Whole ms and bytes, so that the optimum is exact."""

    costs: StageCosts
    limit_bytes: FloatArray


class Outcome(NamedTuple):
    """Excess over the optimum in per cent."""

    without_search: float
    found: float
    refined: float


def drawn_case(
    random: np.random.Generator, shape: tuple[int, int], kind: str, *, tight: bool
) -> Case:
    factor = random.uniform(0.5, 1.5, shape)
    if kind == "proportional":
        size, speed = random.uniform(0.3, 1.7, (shape[0], 1)), random.uniform(0.8, 1.25, shape[1])
        factor = size * speed * random.uniform(0.9, 1.1, shape)
    backward = 200 * factor * random.uniform(0.9, 1.1, shape)
    columns = {
        "forward_ms": 100 * factor,
        "backward_ms": backward,
        "weight_ms": 0.45 * backward,
        "boundary_bytes": np.zeros(shape),
        "stored_bytes": 100 * factor,
        "forward_transient_bytes": 10 * factor,
        "backward_transient_bytes": 20 * factor,
    }
    costs = StageCosts.of(**{name: column.round() for name, column in columns.items()})
    alone = (costs.stored_bytes + costs.backward_transient_bytes).max(axis=0)
    room = random.uniform(0, 2) * costs.stored_bytes.mean() if tight else np.inf
    return Case(costs, (alone + room).round() if tight else np.full(shape[1], 1e9))


def best_schedule(case: Case, rules: list[ScheduleRule]) -> tuple[float, Schedule | None]:
    """By the best of all rules, with its makespan; infinite if none keeps within memory."""
    found: list[tuple[float, Schedule | None]] = [(np.inf, None)]
    for rule in rules:
        try:
            schedule = rule(case.costs, case.limit_bytes, INSTANT)
        except InfeasibleScheduleError:
            continue
        found.append((makespan_ms(case, schedule), schedule))
    return min(found, key=lambda scheduled: scheduled[0])


def makespan_ms(case: Case, schedule: Schedule) -> float:
    return simulate(schedule, case.costs, INSTANT, np.zeros(case.costs.n_stages)).makespan_ms


def searched(case: Case, rule: ScheduleRule) -> Case:
    """In the order that suits a rule best: of so few orders, a local search sees all."""
    orders = map(np.array, permutations(range(case.costs.n_microbatches)))
    ordered = (case._replace(costs=case.costs.take(order)) for order in orders)
    return min(ordered, key=lambda reordered: best_schedule(reordered, [rule])[0])


def outcome_of(case: Case, *, split: bool) -> Outcome | None:
    by_name = SPLIT_RULES if split else RULES
    rules = list(by_name.values())
    as_given_ms, _ = best_schedule(case, rules)
    reordered = searched(case, by_name.get("adaptive", zb_h1))
    found_ms, schedule = best_schedule(reordered, rules)
    if schedule is None:
        return None
    refined = refine(schedule, *reordered, INSTANT, n_moves=REFINING_MOVES)
    refined_ms = makespan_ms(reordered, refined)
    optimum_ms = optimal_makespan_ms(*case, split=split, hint_ms=refined_ms)
    ends_ms = as_given_ms, min(as_given_ms, found_ms), min(as_given_ms, refined_ms)
    return Outcome(*(100 * (ms / optimum_ms - 1) for ms in ends_ms))


def outcomes(
    shapes: list[tuple[int, int]], kind: str, n_draws: int, *, tight: bool, split: bool
) -> Iterator[Outcome | None]:
    """None where our rules found no schedule, or no proof was found in time."""
    for shape in shapes:
        random = np.random.default_rng(shape)
        for _ in range(n_draws):
            try:
                yield outcome_of(drawn_case(random, shape, kind, tight=tight), split=split)
            except NotProvenError:
                yield None


def summary(found: list[Outcome | None]) -> dict[str, float]:
    known = [o for o in found if o is not None] or [Outcome(*[math.inf] * 3)]
    plain, refined = [o.found for o in known], [o.refined for o in known]
    return {
        "without_search": statistics.mean(outcome.without_search for outcome in known),
        "mean": statistics.mean(plain),
        "worst": max(plain),
        "optimal": sum(excess < 1e-9 for excess in plain),
        "refined_mean": statistics.mean(refined),
        "refined_worst": max(refined),
        "refined_optimal": sum(excess < 1e-9 for excess in refined),
        "unproven": found.count(None),
        "cases": len(found),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=12)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    shapes = list(product((4, 5), (3, 4)))  # micro-batches, stages
    results = {}
    for split, tight, kind in product(
        (False, True), (False, True), ("proportional", "independent")
    ):
        name = f"{'split' if split else 'whole'}, {'limit' if tight else 'no limit'}, {kind}"
        found = list(outcomes(shapes, kind, arguments.draws, tight=tight, split=split))
        results[name] = summary(found)
        print(name, results[name], flush=True)
    print_table(results, COLUMNS)
    if arguments.json:
        write_json(arguments.json, results)


if __name__ == "__main__":
    main()
