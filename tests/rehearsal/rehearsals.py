from dataclasses import dataclass
from math import prod
from typing import Any

from tests.jobs.command_line import Tables

BASE: Tables = {
    "model": {
        "hidden_size": 256,
        "n_heads": 4,
        "ffn_size": 512,
        "vocab_size": 320,
        "tied_head": True,
    },
    "cluster": {"n_replicas": 1, "n_stages": 1, "n_shards": 1, "device_memory_bytes": "20GB"},
    "planner": {"batch": {"rule": "dynamic", "layouts": ["padded", "packed"]}},
    "training": {"iterations": 4, "dtype": "bfloat16", "device": "cuda"},
}


@dataclass(frozen=True, slots=True)
class Rehearsal:
    name: str
    changes: Tables
    verb: str = "run"
    has_one_device: bool = False
    resumes: bool = False
    allowed: tuple[str, ...] = ()

    @property
    def tables(self) -> Tables:
        changed = {name: _merged(BASE.get(name, {}), self.changes.get(name, {})) for name in BASE}
        return {**self.changes, **changed}

    @property
    def n_ranks(self) -> int:
        cluster = self.tables["cluster"]
        return prod(cluster[key] for key in ("n_replicas", "n_stages", "n_shards"))

    @property
    def n_devices(self) -> int:
        """Number of GPUs of the host."""
        return 1 if self.has_one_device else self.n_ranks


def _merged(table: Any, changes: Any) -> dict[str, Any]:
    """A table with changes, also of the tables within it."""
    merged = {**table, **changes}
    for key in table.keys() & changes.keys():
        if isinstance(table[key], dict) and isinstance(changes[key], dict):
            merged[key] = _merged(table[key], changes[key])
    return merged


def on(n_stages: int = 1, n_replicas: int = 1, n_shards: int = 1, **keys: object) -> Tables:
    """The [cluster] table with so many ranks."""
    sizes = {"n_stages": n_stages, "n_replicas": n_replicas, "n_shards": n_shards}
    return {"cluster": {**sizes, **keys}}


SPLIT: Tables = {"planner": {"schedule": {"split_backward": True}}}
SLICES: Tables = {"planner": {"batch": {"layouts": ["packed"], "slices": 128}}}
LORA: Tables = {"model": {"lora": {"rank": 4, "alpha": 8}}}
T5: Tables = {
    "model": {"family": "t5", "n_layers": 2, "head_size": 64},
    "planner": {"batch": {"layouts": ["padded"]}},
}
WAITS = "host waits in an iteration"  # tensors of ranks that share a GPU travel through the host
REHEARSALS = (
    Rehearsal("one rank", {}),
    Rehearsal("one rank, profile", {}, verb="profile"),
    Rehearsal("one rank, float32", {"training": {"dtype": "float32"}}),
    Rehearsal("one rank, T5", T5),
    Rehearsal("one rank, LoRA", LORA),
    Rehearsal("2 stages", on(2)),
    Rehearsal("2 stages, profile", on(2), verb="profile"),
    Rehearsal("2 stages, resumed", {**on(2), "checkpoint": {"every": 2}}, resumes=True),
    Rehearsal("2 replicas", on(1, 2)),
    Rehearsal("2 replicas, ZeRO", on(1, 2, zero_stage=1)),
    Rehearsal("2 replicas, profile", on(1, 2), verb="profile"),
    Rehearsal("2 shards", on(n_shards=2)),
    Rehearsal("2 ranks on one GPU", on(2), has_one_device=True, allowed=(WAITS,)),
    Rehearsal("4 stages", on(4)),
    Rehearsal("4 stages, split backward", {**on(4), **SPLIT}),
    Rehearsal("4 stages, T5", {**on(4), **T5}),
    Rehearsal("4 stages, evaluation", {**on(4), "evaluation": {"held_out": 0.1, "every": 2}}),
    Rehearsal("4 stages, slices", {**on(4), **SLICES}),
    Rehearsal("2 x 2, sequence parallel", on(2, n_shards=2, sequence_parallel=True)),
    Rehearsal("2 x 2, ZeRO", {**on(2, 2, zero_stage=1), "training": {"dtype": "float16"}}),
)
