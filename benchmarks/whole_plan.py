"""How long does one plan take, from samples to the bytes of all ranks, and where?

    python benchmarks/whole_plan.py [FOLDER] [--json OUT.json]

FOLDER (default ../shared) holds the inputs, see a100_inputs.py. Medians of one thread over all
batches of a file, in ms, each step alone, the default settings; `schedule` is all rules on the
micro-batches found, simulated. `whole` is the planner's own way through all of them. `predicted`
is the iteration that it plans, `constructed` that of the plan the local search began with. `both`
is as `whole`, in processor time, with padded and packed rows, split backward passes and all modes
of recomputation to choose from.
"""

from pathlib import Path
from time import process_time

import numpy as np

from a100_inputs import GPT, LENGTHS, Mode, a100_cluster, a100_cost, batches, equal_shares
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.check import check_plans
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.codec import encode_plans
from dynapipe_hpc.planner.batch.config import DynamicConfig, LayoutName
from dynapipe_hpc.planner.batch.memory import activation_room_bytes
from dynapipe_hpc.planner.batch.order import order_samples
from dynapipe_hpc.planner.batch.split import split
from dynapipe_hpc.planner.batch.windows.price_windows import price_windows
from dynapipe_hpc.planner.comm.rank_plans import rank_plans
from dynapipe_hpc.planner.from_config import dynamic_chooser, schedule_rules
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.planner.schedule.config import ScheduleConfig
from dynapipe_hpc.planner.schedule.pipeline import schedule_pipeline
from dynapipe_hpc.planner.schedule.update import least_update_ms
from dynapipe_hpc.planner.search.config import SearchConfig
from dynapipe_hpc.planner.search.find_plan import N_KEPT
from dynapipe_hpc.planner.search.space import SearchSpace
from measured import median_ms, medians, run_over_inputs

CONFIG = SearchConfig()
RULES = schedule_rules(ScheduleConfig())
COLUMNS = {
    "samples": "{:.0f}",
    "micro-batches": "{:.0f}",
    "instructions": "{:.0f}",
    "bytes_of_largest": "{:.0f}",
    "order": "{:.2f}",
    "table": "{:.2f}",
    "split": "{:.2f}",
    "construct": "{:.2f}",
    "search": "{:.2f}",
    "schedule": "{:.2f}",
    "transfers": "{:.2f}",
    "check": "{:.2f}",
    "encode": "{:.2f}",
    "whole": "{:.2f}",
    "both": "{:.2f}",
    "predicted": "{:.1f}",
    "constructed": "{:.1f}",
}


def planner_of(
    folder: Path, cluster: Cluster, layouts: tuple[LayoutName, ...] = ("padded",), *modes: Mode
) -> Planner:
    """A planner for the 16-layer model; backward passes may be split if rows may be packed."""
    cost = a100_cost(folder, cluster, modes or ("none",))
    rules = schedule_rules(ScheduleConfig(split_backward="packed" in layouts))
    chooser = dynamic_chooser(DynamicConfig(layouts=layouts), CONFIG, rules, cost, cluster)
    boundaries = equal_shares(GPT, cluster).boundaries(GPT)
    return Planner(chooser, cost, cluster, GPT.hidden_size, boundaries)


def measure(planner: Planner, both: Planner, samples: list[Sample]) -> dict[str, float]:
    """Times every step on what the step before it made."""
    cost, cluster = planner.cost, planner.cluster
    ordered = order_samples(samples)
    windows = price_windows(ordered, cost, cluster)
    room_bytes = activation_room_bytes(cost, cluster)
    alike = np.ones(cluster.n_replicas)

    def new_space() -> SearchSpace:
        return SearchSpace(windows, room_bytes, cluster.link, split_backward=False, slowness=alike)

    space = new_space()
    constructed = space.construct(N_KEPT)
    starts = [plan.replicas for plan in constructed]
    *_, found = space.search(starts, CONFIG.seed).improve(CONFIG.effort)
    replicas = space.microbatches(found.replicas)
    pipelines = [schedule_pipeline(r, cost, cluster, RULES) for r in replicas]
    plans = rank_plans(0, pipelines, cluster, cost, planner.hidden_size, planner.boundaries)
    return {
        "samples": len(samples),
        "micro-batches": sum(map(len, replicas)),
        "instructions": sum(len(plan.instructions) for plan in plans),
        "bytes_of_largest": max(map(len, encode_plans(plans))),
        "order": median_ms(lambda: order_samples(samples)),
        "table": median_ms(lambda: price_windows(ordered, cost, cluster)),
        "split": median_ms(lambda: split(windows, cluster.n_replicas)),
        "construct": median_ms(lambda: new_space().construct(N_KEPT)),
        "search": median_ms(lambda: space.search(starts, CONFIG.seed).improve(CONFIG.effort)),
        "schedule": median_ms(
            lambda: [schedule_pipeline(r, cost, cluster, RULES) for r in replicas]
        ),
        "transfers": median_ms(
            lambda: rank_plans(0, pipelines, cluster, cost, planner.hidden_size, planner.boundaries)
        ),
        "check": median_ms(lambda: check_plans(plans)),
        "encode": median_ms(lambda: encode_plans(plans)),
        "whole": median_ms(lambda: encode_plans(planner.make_plans(0, samples))),
        "both": median_ms(lambda: encode_plans(both.make_plans(0, samples)), clock=process_time),
        "predicted": plans[0].prediction.iteration_ms,
        "constructed": constructed[0].makespan_ms + least_update_ms(cost, may_split=False),
    }


def measure_all(folder: Path) -> dict[str, dict[str, float]]:
    results = {}
    for name in LENGTHS:
        for n_replicas in (1, 2):
            cluster = a100_cluster(n_replicas)
            planner = planner_of(folder, cluster)
            both = planner_of(folder, cluster, ("padded", "packed"), "none", "selective", "full")
            measured = [measure(planner, both, samples) for samples in batches(folder, name)]
            results[f"{name} x{n_replicas}"] = medians(measured, COLUMNS)
    return results


if __name__ == "__main__":
    run_over_inputs(__doc__, measure_all, COLUMNS)
