"""The plans that the authors' planner made of batches of lengths, and what they were made with.

Both are read from the shared folder: reference/original_planner.json, lengths/ and profiles/.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tests.oracles.length_samples import samples_of
from tests.oracles.shared_folder import shared_folder

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.plan.model_shape import ModelShape
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.cost.import_csv import import_csv
from dynapipe_hpc.planner.cost.profile_table import ProfileTable
from dynapipe_hpc.planner.cost.profiled import ProfiledCost

LINK = Link(latency_ms=0, bytes_per_ms=4800e9 / 8 / 1e3, full_duplex=False)
COSTS = ProfiledConfig(
    path=Path("costs.h5"), recompute=("none", "selective", "full"), accounting="authors"
)


class Published(NamedTuple):
    """A batch, what plans it here, and the authors' plan."""

    samples: list[Sample]
    cost: CostModel
    cluster: Cluster
    plan: Mapping[str, Any]

    @property
    def replicas(self) -> list[Mapping[str, Any]]:
        """Of the authors' plan."""
        return list(self.plan["replicas"])


@cache
def published_plans() -> list[Published]:
    """Those of all batches of a GPT; skips the test that asks if they are not there."""
    text = (shared_folder("reference") / "original_planner.json").read_text(encoding="utf-8")
    of_gpt = [entry for entry in json.loads(text) if entry["input"].startswith("gpt")]
    return [published for entry in of_gpt for published in _batches(entry)]


def _batches(entry: Mapping[str, Any]) -> Iterator[Published]:
    config = entry["config"]
    cluster = Cluster(
        n_replicas=config["dp"],
        n_stages=config["pp"],
        device_memory_bytes=config["device_memory_limit_mb"] * 1_000_000,
        link=LINK,
    )
    shape = _shape(config["layers"])
    cost = ProfiledCost(_a100(), shape, cluster, COSTS)
    path = shared_folder("lengths") / f"{entry['input']}.json"
    batches = json.loads(path.read_text(encoding="utf-8"))["batches"]
    for lengths, plan in zip(batches, entry["batches"], strict=True):
        yield Published(samples_of(lengths), cost, cluster, plan)


@cache
def _a100() -> ProfileTable:
    path = shared_folder("profiles") / "a100_40gb_gpt_6.7b.csv"
    return import_csv(path, path.with_name("a100_40gb_gpt_6.7b_parameters.csv"), _shape(16))


def _shape(n_layers: int) -> ModelShape:
    return ModelShape(
        n_layers=n_layers,
        hidden_size=4096,
        n_heads=32,
        ffn_size=16384,
        vocab_size=50304,
        max_tokens=8192,
    )
