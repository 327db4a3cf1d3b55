"""Distance of our schedules from proven optima.

    python benchmarks/schedule_optimum.py [--draws N] [--json OUT.json]

Few micro-batches with random uneven costs on few stages, with and without a limit on memory. Ours
is what the planner does by default, but that micro-batches stay as they are: local search on the
order of injection, and all rules. `rules` is the best rule on the order given. Optimum: proven, see
optimal_makespan.py. Excess in per cent; `unproven` are cases without a proof in time, or without a
schedule of ours. `proportional` costs are a size per micro-batch times a factor per stage, with
10 % of noise; `independent` ones are drawn per micro-batch and stage.
"""

import argparse
import math
import statistics
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dynapipe_hpc import _kernels
from dynapipe_hpc.planner.cost.cost_model import FloatArray, StageCosts
from dynapipe_hpc.planner.from_config import RULES, SPLIT_RULES
from dynapipe_hpc.planner.schedule.schedule_rule import (
    INSTANT,
    InfeasibleScheduleError,
    Schedule,
    ScheduleRule,
    kernel_link,
)
from dynapipe_hpc.planner.schedule.simulate import simulate
from dynapipe_hpc.planner.search.config import SearchConfig
from measured import print_table, write_json
from optimal_makespan import NotProvenError, optimal_makespan_ms

SEED = 20_000
COLUMNS = {
    "rules": "{:.3f}",
    "mean": "{:.3f}",
    "worst": "{:.3f}",
    "optimal": "{:.0f}",
    "unproven": "{:.0f}",
    "cases": "{:.0f}",
}


class Case(NamedTuple):
    """Whole ms and bytes, so that the optimum is exact."""

    costs: StageCosts
    limit_bytes: FloatArray


class Outcome(NamedTuple):
    """Excess over the optimum in per cent."""

    rules: float
    found: float


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
        "splitting_ms": np.zeros(shape),
        "boundary_bytes": np.zeros(shape),
        "stored_bytes": 100 * factor,
        "forward_transient_bytes": 10 * factor,
        "backward_transient_bytes": 20 * factor,
    }
    costs = StageCosts.from_times(**{name: column.round() for name, column in columns.items()})
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


def searched(case: Case, config: SearchConfig, *, split: bool) -> Case:
    """In the order of injection that the planner's search finds."""
    n = case.costs.n_microbatches
    places = np.arange(n, dtype=np.int32)
    spans = np.stack([np.arange(n), np.arange(1, n + 1)], axis=1)[None]
    windows = _kernels.WindowCosts(case.costs.checked, places, spans, places)
    *_, best = _kernels.find_plan(
        windows,
        case.limit_bytes,
        kernel_link(INSTANT),
        split,
        np.zeros(len(case.limit_bytes)),
        np.ones(1),
        config.effort,
        config.seed,
    )
    return case._replace(costs=case.costs.take(best.replicas[0][:, 0].astype(np.int64)))


def outcome_of(case: Case, *, split: bool) -> Outcome | None:
    rules = list((SPLIT_RULES if split else RULES).values())
    config = SearchConfig()
    as_given_ms, _ = best_schedule(case, rules)
    reordered = searched(case, config, split=split)
    found_ms, schedule = best_schedule(reordered, rules)
    if schedule is None:
        return None
    optimum_ms = optimal_makespan_ms(*case, split=split, hint_ms=found_ms)
    return Outcome(*(100 * (ms / optimum_ms - 1) for ms in (as_given_ms, found_ms)))


def outcomes(
    shapes: list[tuple[int, int]], kind: str, n_draws: int, *, tight: bool, split: bool
) -> Iterator[Outcome | None]:
    """None where our rules found no schedule, or no proof was found in time."""
    for shape in shapes:
        random = np.random.default_rng((SEED, *shape))
        for _ in range(n_draws):
            try:
                yield outcome_of(drawn_case(random, shape, kind, tight=tight), split=split)
            except NotProvenError:
                yield None


def summary(found: list[Outcome | None]) -> dict[str, float]:
    known = [o for o in found if o is not None] or [Outcome(*[math.inf] * 2)]
    ours = [outcome.found for outcome in known]
    return {
        "rules": statistics.mean(outcome.rules for outcome in known),
        "mean": statistics.mean(ours),
        "worst": max(ours),
        "optimal": sum(excess < 1e-9 for excess in ours),
        "unproven": found.count(None),
        "cases": len(found),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=12)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    shapes = list(product((4, 5), (3, 4)))  # micro-batches, stages
    results, every = {}, []
    for split, tight, kind in product(
        (False, True), (False, True), ("proportional", "independent")
    ):
        name = f"{'split' if split else 'whole'}, {'limit' if tight else 'no limit'}, {kind}"
        found = list(outcomes(shapes, kind, arguments.draws, tight=tight, split=split))
        results[name] = summary(found)
        every += found
        print(name, results[name], flush=True)
    results["all"] = summary(every)
    print_table(results, COLUMNS)
    if arguments.json:
        write_json(arguments.json, results)


if __name__ == "__main__":
    main()
