"""Is a default plan ever worse than one that less would have found, on odd batches?

    python benchmarks/odd_batches.py [FOLDER] [--json OUT.json]

FOLDER (default ../shared) holds the cost tables, see a100_inputs.py. Batches that no planner was
tuned for are planned for pipelines of 1 to 16 stages and 1 to 16 replicas, with ample memory and
with 2 % more than some sample needs on its own. Tables that are noisy have every time of a
layer multiplied by 0.5 to 1.5, drawn anew. A row is a batch, over all of these. Each
column but the last is the largest ratio of the default plan's predicted iteration over that of
another way to plan the same batch; 1 is a tie, and more than that a loss:

- rules: the best plan that the search would begin with (effort 0)
- padding: naive padding with 1 to 16 rows in a micro-batch, and its best token budget
- modes: any one mode of recomputation for all micro-batches, searched as hard
- 1f1b: 1F1B on the micro-batches of the default plan
- half: half the effort; double: double the effort, over the default

Dense packing is not compared, as samples of its rows see each other. `planning` is the median
processor time of one thread in ms.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product, repeat
from pathlib import Path
from statistics import median

import numpy as np

from a100_inputs import MODELS, Devices, a100_devices, a100_table
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.lengths_file import samples_of_lengths
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.baseline import Baseline
from dynapipe_hpc.planner.baselines.config import (
    BaselineConfig,
    NaivePaddingConfig,
    TokenBudgetConfig,
)
from dynapipe_hpc.planner.batch.config import DynamicConfig
from dynapipe_hpc.planner.batch.memory import activation_bytes
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.batch.row_length import padded_microbatch
from dynapipe_hpc.planner.choose.choice import Choice
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.cost.table.profile_table import LayerProfile, ProfileTable
from dynapipe_hpc.planner.from_config import schedule_rules
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.planner.schedule.config import ScheduleConfig
from dynapipe_hpc.planner.schedule.one_f_one_b import one_f_one_b
from dynapipe_hpc.planner.schedule.pipeline import schedule_pipeline
from dynapipe_hpc.planner.schedule.schedule_rule import InfeasibleScheduleError
from dynapipe_hpc.planner.schedule.update import iteration_ms
from dynapipe_hpc.planner.search.config import SearchConfig
from measured import run_over_inputs

STAGES = (1, 2, 4, 8, 16)
REPLICAS = (1, 2, 8, 16)
AMPLE_BYTES = 2_000_000_000_000
SLACK = 1.02
SEED = 5
RULES = schedule_rules(ScheduleConfig())
ONE_FOR_ALL = DynamicConfig(recompute_choice="per_iteration")
RATIOS = ("rules", "padding", "modes", "1f1b", "half", "double")
COLUMNS = {"cases": "{:.0f}", **dict.fromkeys(RATIOS, "{:.4f}"), "planning": "{:.1f}"}

Lengths = list[int]
Row = dict[str, float]


def samples_in(name: str, n_replicas: int) -> list[Sample]:
    """The samples of an odd batch."""
    random = np.random.default_rng(SEED)

    def zipf() -> Lengths:
        return [min(8 * int(n), 8192) for n in random.zipf(1.5, 300)]

    def uniform() -> Lengths:
        return [int(n) for n in random.integers(1, 8193, 64)]

    batches: Mapping[str, Callable[[], Lengths]] = {
        "Zipf": zipf,
        "bimodal": lambda: random.choice([64, 4096], 150, p=[0.8, 0.2]).tolist(),
        "constant": lambda: [512] * 128,
        "one giant": lambda: [8192] + [32] * 1999,
        "all ones": lambda: [1] * 500,
        "one per replica": lambda: random.integers(1, 4096, n_replicas).tolist(),
        "three": lambda: [2048, 700, 30],
        "uniform": uniform,
        "FLAN-like": lambda: random.lognormal(5, 1, 110).clip(8, 2048).astype(int).tolist(),
        "noisy Zipf": zipf,
        "noisy uniform": uniform,
        "T5 three": lambda: [2048, 700, 30],
        "T5 Zipf": lambda: [min(n, 2048) for n in zipf()[:30]],
    }
    inputs = batches[name]()
    targets = random.integers(1, 512, len(inputs)).tolist() if name.startswith("T5") else repeat(0)
    return samples_of_lengths(list(zip(inputs, targets, strict=False)))


BATCHES = ("Zipf", "bimodal", "constant", "one giant", "all ones", "one per replica", "three",
           "uniform", "FLAN-like", "noisy Zipf", "noisy uniform", "T5 three",
           "T5 Zipf")  # fmt: skip


def devices_for(
    name: str, samples: Sequence[Sample], n_replicas: int, folder: Path
) -> Iterator[Devices]:
    """Every pipeline and memory."""
    distinct = {(s.input_tokens, s.target_tokens): s for s in samples}.values()
    for n_stages in STAGES if n_replicas <= len(samples) else ():
        ample = Cluster(n_replicas=n_replicas, n_stages=n_stages, device_memory_bytes=AMPLE_BYTES)
        yield (devices := devices_of(name, folder, ample))
        least = math.ceil(SLACK * max(least_bytes(s, devices.cost) for s in distinct))
        yield devices_of(name, folder, ample.model_copy(update={"device_memory_bytes": least}))


def devices_of(name: str, folder: Path, cluster: Cluster) -> Devices:
    family = "t5" if name.startswith("T5") else "gpt"
    table = a100_table(folder, family)
    _, shape = MODELS[family]
    return a100_devices(noisy(table) if "noisy" in name else table, cluster, shape)


def noisy(table: ProfileTable) -> ProfileTable:
    """Every time of a layer as if something else had slowed the machine, or its clock sped up."""
    random = np.random.default_rng(SEED)

    def spoiled(layer: LayerProfile) -> LayerProfile:
        forward_ms, backward_ms = (
            ms * random.uniform(0.5, 1.5, ms.shape) for ms in (layer.forward_ms, layer.backward_ms)
        )
        return replace(layer, forward_ms=forward_ms, backward_ms=backward_ms)

    return replace(table, layers={key: spoiled(layer) for key, layer in table.layers.items()})


def least_bytes(sample: Sample, cost: CostModel) -> float:
    """Memory that a sample needs to run, in the mode that needs least."""
    alone = [
        padded_microbatch([sample], mode, cost.is_encoder_decoder) for mode in cost.recompute_modes
    ]
    return float(np.min([
        (cost.static_bytes + activation_bytes(microbatch_costs([m], cost))[0]).max()
        for m in alone
    ]))  # fmt: skip


def measure(devices: Devices, samples: Sequence[Sample]) -> Row:
    """One batch on one cluster: the default plan over others."""
    planner = devices.planner()
    started_s = time.thread_time()
    choice = planner.choose(samples)
    planning_ms = 1e3 * (time.thread_time() - started_s)
    found_ms = ms_of(planner, choice)
    effort = SearchConfig().effort

    def with_effort(n: int) -> float:
        return choose_ms(devices.planner(search=SearchConfig(effort=n)), samples)

    padding: list[BaselineConfig] = [
        NaivePaddingConfig(rule="naive_padding", rows_per_microbatch=2**k) for k in range(5)
    ]
    padding += [
        TokenBudgetConfig(rule="token_budget", tokens_per_microbatch=2**k) for k in range(8, 18)
    ]
    choosers = [Baseline(each, RULES, planner.cost, planner.cluster) for each in padding]
    others_ms = {
        "rules": with_effort(0),
        "padding": min(
            choose_ms(replace(planner, chooser=chooser), samples) for chooser in choosers
        ),
        "modes": choose_ms(devices.planner(ONE_FOR_ALL), samples),
        "1f1b": one_f_one_b_ms(planner, choice),
        "half": with_effort(effort // 2),
    }
    row = {name: found_ms / ms for name, ms in others_ms.items()}
    return row | {"double": with_effort(2 * effort) / found_ms, "planning": planning_ms}


def ms_of(planner: Planner, choice: Choice) -> float:
    return iteration_ms([pipeline.timeline for pipeline in choice.pipelines], planner.cost)


def choose_ms(planner: Planner, samples: Sequence[Sample]) -> float:
    """The predicted iteration; infinite if there is no such plan."""
    try:
        return ms_of(planner, planner.choose(samples))
    except InputError:
        return math.inf


def one_f_one_b_ms(planner: Planner, choice: Choice) -> float:

    try:
        pipelines = [
            schedule_pipeline(pipeline.microbatches, planner.cost, planner.cluster, [one_f_one_b])
            for pipeline in choice.pipelines
        ]
    except InfeasibleScheduleError:
        return math.inf
    return iteration_ms([pipeline.timeline for pipeline in pipelines], planner.cost)


def measure_all(folder: Path) -> dict[str, Row]:
    rows: dict[str, list[Row]] = {}
    for name, n_replicas in product(BATCHES, REPLICAS):
        samples = samples_in(name, n_replicas)
        for devices in devices_for(name, samples, n_replicas, folder):
            rows.setdefault(name, []).append(measure(devices, samples))
    found = {name: summary(measured) for name, measured in rows.items()}
    return found | {"all": summary([row for measured in rows.values() for row in measured])}


def summary(measured: Sequence[Row]) -> Row:
    worst = {name: max(row[name] for row in measured) for name in RATIOS}
    planning_ms = median(row["planning"] for row in measured)
    return {"cases": len(measured), **worst, "planning": planning_ms}


if __name__ == "__main__":
    run_over_inputs(__doc__, measure_all, COLUMNS)
