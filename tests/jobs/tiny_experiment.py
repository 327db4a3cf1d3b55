from pathlib import Path
from typing import Any

from tests.examples.tokenized import write_samples

from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.load import to_toml


def tiny_experiment(n_stages: int = 1, n_replicas: int = 1, n_shards: int = 1) -> ExperimentConfig:
    """A small GPT with rows of at most 32 tokens, 256 tokens per batch."""
    sizes = {"n_layers": 4, "hidden_size": 16, "n_heads": 2, "ffn_size": 64}
    ranks = {"n_stages": n_stages, "n_replicas": n_replicas, "n_shards": n_shards}
    return ExperimentConfig.model_validate(
        {
            "data": {"dataset": "none.h5", "max_tokens": 32, "tokens_per_batch": 256},
            "model": {**sizes, "vocab_size": 40, "max_tokens": 64},
            "cluster": {**ranks, "device_memory_bytes": 10**9},
            "planner": {"cost": {"kind": "analytic"}, "batch": {"rule": "dynamic"}},
            "training": {"iterations": 1},
        }
    )


def with_keys(config: ExperimentConfig, **tables: dict[str, Any]) -> ExperimentConfig:
    """The configuration with other values of keys, by table; nothing is checked."""
    changed = {name: getattr(config, name).model_copy(update=keys) for name, keys in tables.items()}
    return config.model_copy(update=changed)


def write_tiny_experiment(folder: Path) -> Path:
    """Writes the configuration of one rank and its dataset into a folder, which is returned."""
    dataset = write_samples(folder / "x.h5", [([1] * 20, [9], "long")] * 40)
    text = to_toml(tiny_experiment()).replace("none.h5", str(dataset))
    (folder / "config.toml").write_text(text)
    return folder


def tiny_t5_experiment(n_stages: int = 1, n_replicas: int = 1) -> ExperimentConfig:
    """As `tiny_experiment`, of a small T5 with costs in a table t.h5."""
    tables = tiny_experiment(n_stages, n_replicas).model_dump()
    # Only what a GPT sets: what it leaves out has the defaults of a T5, such as a tied head.
    sizes = {name: tables["model"][name] for name in tiny_experiment().model.model_fields_set}
    tables["model"] = sizes | {"family": "t5", "n_layers": 2, "head_size": 8}
    tables["planner"]["cost"] = {"kind": "profiled", "path": "t.h5"}
    return ExperimentConfig.model_validate(tables)
