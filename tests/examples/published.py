"""Measurements of the paper's authors on an A100, and the plans that their planner made of them."""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tests.examples.equal_shares import equal_shares
from tests.jobs.shared_folder import shared_folder

from dynapipe_hpc.architecture.decoder import GptShape
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.t5 import T5Shape
from dynapipe_hpc.data.lengths_file import read_lengths, samples_of_lengths
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.cost.profiled import profiled_cost
from dynapipe_hpc.planner.cost.table.import_csv import import_csv
from dynapipe_hpc.planner.cost.table.profile_table import ProfileTable

Family = Literal["gpt", "t5"]
PROFILES: Mapping[Family, str] = {"gpt": "a100_40gb_gpt_6.7b", "t5": "a100_40gb_t5_11b"}
SHAPES: Mapping[Family, ModelShape] = {
    "gpt": GptShape(
        n_layers=16, hidden_size=4096, n_heads=32, ffn_size=16384, vocab_size=50304, max_tokens=8192
    ),
    "t5": T5Shape(
        n_layers=96,
        hidden_size=1024,
        n_heads=128,
        head_size=128,
        ffn_size=65536,
        vocab_size=32128,
        max_tokens=8192,
    ),
}


@cache
def a100_table(family: Family) -> ProfileTable:
    """Of a GPT 6.7B or a T5 11B; skips the test that asks if it is not there."""
    path = shared_folder("profiles") / f"{PROFILES[family]}.csv"
    return import_csv(path, path.with_stem(f"{path.stem}_parameters"), SHAPES[family])


TARGET_MARKERS = 2  # the authors' decoder rows of a T5 hold a token before and after the target
LINK = Link(latency_ms=0, bytes_per_ms=4800e9 / 8 / 1e3, full_duplex=False)
COSTS = ProfiledConfig(path=Path("costs.h5"), recompute=("none", "selective", "full"))


class Published(NamedTuple):
    """A batch, what plans it here, and the authors' plan."""

    samples: list[Sample]
    cost: CostModel
    cluster: Cluster
    plan: Mapping[str, Any]


@cache
def published_plans(family: Family) -> list[Published]:
    """Those of all batches of a model; skips the test that asks if they are not there."""
    text = (shared_folder("reference") / "original_planner.json").read_text(encoding="utf-8")
    entries = [entry for entry in json.loads(text) if entry["input"].startswith(family)]
    return [published for entry in entries for published in _batches(family, entry)]


def static_share(cluster: Cluster) -> float:
    """Memory of a rank's model in the authors' plans, as a share of what it is here."""
    n = cluster.n_replicas
    return (2 + 6 / n) / (3 + 5 / n)


def _batches(family: Family, entry: Mapping[str, Any]) -> Iterator[Published]:
    config = entry["config"]
    cluster = Cluster(
        n_replicas=config["dp"],
        n_stages=config["pp"],
        n_shards=config["tp"],
        device_memory_bytes=config["device_memory_limit_mb"] * 1_000_000,
        zero_stage=1,
        link=LINK,
    )
    shape = SHAPES[family].model_copy(update={"n_layers": config["layers"]})
    placement = equal_shares(shape, cluster)
    cost = profiled_cost(
        a100_table(family), shape, placement, cluster, config=COSTS, is_smoothed=False
    )
    markers = TARGET_MARKERS if shape.has_target_rows else 0
    lengths = read_lengths(shared_folder("lengths") / f"{entry['input']}.json")
    for batch, plan in zip(lengths, entry["batches"], strict=True):
        samples = samples_of_lengths([(inputs, targets + markers) for inputs, targets in batch])
        # Theirs keeps gradients in float16, so that its model leaves more room.
        less = (1 - static_share(cluster)) * cost.static_bytes.max()
        roomy = cluster.model_copy(
            update={"device_memory_bytes": cluster.device_memory_bytes + round(less)}
        )
        yield Published(samples, cost, roomy, plan)
