"""The files that a small job reads."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tomli_w
from tests.jobs.command_line import call

Tables = Mapping[str, Mapping[str, Any]]

CONFIG: Tables = {
    "data": {"dataset": "corpus.h5", "max_tokens": 256, "tokens_per_batch": 1024},
    "model": {
        "n_layers": 4,
        "hidden_size": 32,
        "n_heads": 4,
        "ffn_size": 64,
        "vocab_size": 257,
        "max_tokens": 256,
    },
    "cluster": {"n_replicas": 2, "n_stages": 2, "device_memory_bytes": 100_000_000},
    "planner": {"cost": {"kind": "analytic"}, "batch": {"rule": "dynamic"}},
    "training": {"iterations": 4, "learning_rate": 1e-3},
}

# Two ranks, which start in half the time of four.
ONE_REPLICA = ("--set", "cluster.n_replicas=1")


def write_config(folder: Path, changes: Tables) -> None:
    """A configuration for four ranks, config.toml, with changes by table."""
    tables = {
        name: {**CONFIG.get(name, {}), **changes.get(name, {})} for name in {**CONFIG, **changes}
    }
    (folder / "config.toml").write_text(tomli_w.dumps(tables))


def write_job_files(folder: Path, changes: Tables | None = None) -> None:
    """A configuration and its dataset, corpus.h5, which was made of corpus.jsonl."""
    for name, content in corpus_files().items():
        (folder / name).write_bytes(content)
    write_config(folder, changes or {})


@cache
def corpus_files() -> dict[str, bytes]:
    """A demo corpus and its dataset by file name, made once as a user makes them."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        call(folder, None, "demo-corpus", "corpus.jsonl", "--samples", "200", "--seed", "3")
        call(folder, None, "preprocess", "corpus.jsonl", "corpus.h5")
        return {path.name: path.read_bytes() for path in folder.iterdir()}
