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


class Family(NamedTuple):
    """The model of a family whose layers were measured, but for its depth."""

    profile: str
    sizes: Mapping[str, int]

    def shape(self, family: str, n_layers: int) -> ModelShape:
        """The model of some depth."""
        return ModelShape.model_validate({"family": family, "n_layers": n_layers, **self.sizes})


FAMILIES = {
    "gpt": Family(
        "a100_40gb_gpt_6.7b",
        {
            "hidden_size": 4096,
            "n_heads": 32,
            "ffn_size": 16384,
            "vocab_size": 50304,
            "max_tokens": 8192,
        },
    ),
    "t5": Family(
        "a100_40gb_t5_11b",
        {
            "hidden_size": 1024,
            "n_heads": 128,
            "head_size": 128,
            "ffn_size": 65536,
            "vocab_size": 32128,
            "max_tokens": 8192,
        },
    ),
}


@cache
def published_plans(family: str = "gpt") -> list[Published]:
    """Those of all batches of a family; skips the test that asks if they are not there."""
    text = (shared_folder("reference") / "original_planner.json").read_text(encoding="utf-8")
    entries = [entry for entry in json.loads(text) if entry["input"].startswith(family)]
    return [published for entry in entries for published in _batches(entry, family)]


def _batches(entry: Mapping[str, Any], family: str) -> Iterator[Published]:
    config = entry["config"]
    cluster = Cluster(
        n_replicas=config["dp"],
        n_stages=config["pp"],
        device_memory_bytes=config["device_memory_limit_mb"] * 1_000_000,
        link=LINK,
    )
    shape = FAMILIES[family].shape(family, config["layers"])
    settings = COSTS.model_copy(update={"tensor_parallel": config["tp"]})
    cost = ProfiledCost(_a100(family), shape, cluster, settings)
    path = shared_folder("lengths") / f"{entry['input']}.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    targets = content.get("dec_batches", [None] * len(content["batches"]))
    for lengths, of_targets, plan in zip(
        content["batches"], targets, entry["batches"], strict=True
    ):
        yield Published(_samples(lengths, of_targets), cost, cluster, plan)


def _samples(lengths: list[int], targets: list[int] | None) -> list[Sample]:
    if targets is None:
        return samples_of(lengths)
    pairs = enumerate(zip(lengths, targets, strict=True))
    return [Sample(i, inputs, of_target) for i, (inputs, of_target) in pairs]


@cache
def _a100(family: str) -> ProfileTable:
    path = shared_folder("profiles") / f"{FAMILIES[family].profile}.csv"
    shape = FAMILIES[family].shape(family, 16)  # of any depth
    return import_csv(path, path.with_stem(f"{path.stem}_parameters"), shape)
