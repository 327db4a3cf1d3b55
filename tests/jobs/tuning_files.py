"""Files of a run that tunes a model of `transformers`, which need no such package themselves."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from tests.examples.tokenized import write_samples

N_IDS = 53
N_STEPS = 20
TRAINING = {
    "iterations": N_STEPS,
    "dtype": "float64",
    "learning_rate": 1e-3,
    "min_learning_rate_ratio": 1.0,
    "clip_norm": 0.0,
    "weight_decay": 0.1,
}


def write_tuning_files(
    folder: Path, as_seen: str = "", tables: Mapping[str, Mapping[str, Any]] = {}
) -> None:
    """A dataset and a configuration that names a model, not its sizes."""
    stream = np.random.default_rng(8)
    lengths = stream.integers(1, 24, (60, 2)).tolist()
    sides = ([stream.integers(0, N_IDS, n).tolist() for n in pair] for pair in lengths)
    samples = [(inputs, targets, "task") for inputs, targets in sides]
    write_samples(folder / "corpus.h5", samples, N_IDS)
    own: dict[str, dict[str, Any]] = {
        "data": {"dataset": f"{as_seen}corpus.h5", "max_tokens": 48, "tokens_per_batch": 128},
        "model": {"init_from": f"{as_seen}theirs"},
        "cluster": {"n_replicas": 2, "n_stages": 2, "device_memory_bytes": 100_000_000},
        "planner": {
            "cost": {"kind": "analytic"},
            "batch": {"rule": "dynamic"},
            "search": {"effort": 0},
        },
        "training": TRAINING,
    }
    merged = {name: {**table, **tables.get(name, {})} for name, table in own.items()}
    (folder / "config.toml").write_text(tomli_w.dumps(merged))
