"""Datasets as older versions wrote them, written out: without spans and without a start token."""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import h5py
import numpy as np
from tests.examples.tokenized import Tokenized


def write_old(path: Path, samples: Sequence[Tokenized], content_sha256: str = "") -> Path:
    """Writes samples of a vocabulary of ten tokens, as schema version 1."""
    with h5py.File(path, "w") as file:
        tasks = list(dict.fromkeys(task for _, _, task in samples))
        _put_lengths(file, samples)
        for k, side in enumerate(("inputs", "targets")):
            tokens = [token for sample in samples for token in sample[k]]
            file[f"{side}/tokens"] = np.array(tokens, np.uint16)
        file["task_names"] = np.array([task.encode() for task in tasks])
        _put_attributes(file, 1)
        if content_sha256:
            file.attrs["content_sha256"] = np.bytes_(content_sha256.encode())
    return path


def write_old_index(path: Path, shard: Path, content_sha256: str, n_samples: int) -> Path:
    """Writes an index of one shard, as schema version 2."""
    with h5py.File(shard) as of, h5py.File(path, "w") as file:
        for name in ("inputs/offsets", "targets/offsets", "task_ids", "task_names"):
            file[name] = of[name][:]
        file["shards/names"] = np.array([shard.name.encode()])
        file["shards/sha256"] = np.array([content_sha256.encode()])
        file["shards/sizes"] = np.array([shard.stat().st_size])
        file["shards/starts"] = np.array([0, n_samples])
        _put_attributes(file, 2)
    return path


def _put_lengths(file: h5py.File, samples: Sequence[Tokenized]) -> None:
    for k, side in enumerate(("inputs", "targets")):
        lengths = (len(sample[k]) for sample in samples)
        file[f"{side}/offsets"] = np.array([*accumulate(lengths, initial=0)], np.int64)
    tasks = list(dict.fromkeys(task for _, _, task in samples))
    file["task_ids"] = np.array([tasks.index(task) for _, _, task in samples], np.int32)


def _put_attributes(file: h5py.File, version: int) -> None:
    texts = {"format": "dynapipe-hpc dataset", "tokenizer_name": "digits", "created": "2025"}
    for name, text in texts.items():
        file.attrs[name] = np.bytes_(text.encode())
    file.attrs["tokenizer_sha256"] = np.bytes_(b"ab" * 32)
    file.attrs["schema_version"] = version
    file.attrs["vocab_size"], file.attrs["eos_id"] = 10, 9
    file.attrs["sources"] = np.array([b"a.jsonl"])
