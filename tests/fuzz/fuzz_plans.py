"""Does the check refuse exactly the plans that do not work? On any number of random ones.

    python -m tests.fuzz.fuzz_plans 100000 [--seed 1]

Every case is the plans of a random schedule, which must pass, and the same with something
changed, which must be refused if and only if it does not work. What works is found by executing
it (tests/oracles/execute_plans.py), where only waits block, and again where every start blocks,
too. Of every tenth case the encoded plans get bytes changed, which must be refused as well.
Prints counts; the first case that goes wrong ends it.
"""

import argparse
import random
from collections import Counter
from collections.abc import Sequence

from tests.fuzz.random_plans import changed, random_replicas
from tests.oracles.execute_plans import evaluates, plans_execute

from dynapipe_hpc.plan.check import PlanError, check_plans
from dynapipe_hpc.plan.codec import PlanFormatError, decode, encode_plans
from dynapipe_hpc.plan.rank_plan import RankPlan, grid

Counts = Counter[tuple[str, str]]


def fuzz(n_cases: int, seed: int) -> Counts:
    """Counts cases by what was done and what came of it."""
    draw = random.Random(seed)  # noqa: S311, it is to be repeated
    counts = Counts()
    for case in range(n_cases):
        replicas = random_replicas(draw)
        plans = [plan for replica in replicas for plan in replica]
        assert error_of(plans) is None, f"refused: {error_of(plans)}\n{grid(plans)}"
        assert all(map(_works, replicas)), f"does not work:\n{grid(plans)}"
        counts["none", "works and passes"] += 1
        counts[_try_change(draw, replicas)] += 1
        if case % 10 == 0:
            counts.update(_change_bytes(draw, data, plan) for data, plan in _encoded(plans))
    return counts


def error_of(plans: Sequence[RankPlan]) -> PlanError | None:
    """Reason for which the plans are refused."""
    try:
        check_plans(plans)
    except PlanError as error:
        return error
    return None


def _try_change(draw: random.Random, replicas: list[list[RankPlan]]) -> tuple[str, str]:
    which = draw.randrange(len(replicas))
    name, replica = changed(draw, replicas[which])
    all_replicas = [replica if k == which else r for k, r in enumerate(replicas)]
    plans = [plan for each in all_replicas for plan in each]
    is_one_kind = len(set(map(evaluates, all_replicas))) == 1
    works, error = _works(replica) and is_one_kind, error_of(plans)
    assert works == (error is None), f"{name}: works: {works}, check: {error}\n{grid(plans)}"
    return name, "works and passes" if works else "is broken and refused"


def _works(replica: Sequence[RankPlan]) -> bool:
    """Whether the plans of a replica execute, which must not depend on what starts wait for."""
    works = plans_execute(replica)
    assert works == plans_execute(replica, starts_block=True), f"hangs in a start:\n{grid(replica)}"
    return works


def _encoded(plans: Sequence[RankPlan]) -> list[tuple[bytes, RankPlan]]:
    encoded = encode_plans(plans)
    assert list(map(decode, encoded)) == list(plans)
    return list(zip(encoded, plans, strict=True))


def _change_bytes(draw: random.Random, data: bytes, plan: RankPlan) -> tuple[str, str]:
    changed_data = bytearray(data)
    for place in draw.sample(range(len(data)), draw.randint(1, 4)):
        changed_data[place] ^= draw.randint(1, 255)
    try:
        decode(bytes(changed_data))
    except PlanFormatError:
        return "bytes", "is broken and refused"
    raise AssertionError(f"changed bytes are read as a plan:\n{grid([plan])}")


def _print(counts: Counts) -> None:
    outcomes = sorted({outcome for _, outcome in counts})
    print(f"{'change':16}", *outcomes)
    for name in dict.fromkeys(name for name, _ in counts):
        cells = (f"{counts[name, outcome]:>{len(outcome)},}" for outcome in outcomes)
        print(f"{name:16}", *cells)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", type=int)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    _print(fuzz(arguments.cases, arguments.seed))
