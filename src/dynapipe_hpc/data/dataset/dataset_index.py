"""The index that joins shards into one dataset: names of their files, lengths and tasks."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.atomic_write import atomic_write
from dynapipe_hpc.data.dataset.dataset_file import DatasetFile
from dynapipe_hpc.data.dataset.dataset_header import (
    DatasetHeader,
    fixed_length,
    write_header,
    write_turn_end_ids,
)
from dynapipe_hpc.data.dataset.dataset_writer import creating
from dynapipe_hpc.data.dataset.own_tokens import GROUPS, REJECTED
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.spans import Spans

Arrays = list[npt.NDArray[np.integer]]


def write_index(output: Path, header: DatasetHeader, shards: Sequence[Path]) -> None:
    """Writes an index of the samples of all shards, in order; the shards stay where they are.

    Args:
        output: Path of the index, which appears when it is complete.
        header: Header of the dataset.
        shards: Paths of datasets in the index's folder or below.

    Raises:
        InputError: A shard cannot be read or is of another tokenizer, or there is no sample.
        RunError: The file system refuses, as when the disk is full.
    """
    groups = (*GROUPS, REJECTED) if header.has_pairs else GROUPS
    lengths: dict[str, Arrays] = {group: [] for group in groups}
    task_ids: Arrays = []
    spans: list[Spans] = []
    id_of_task: dict[str, int] = {}
    sha256: list[str] = []
    turn_end_ids: set[int] = set()
    for path in shards:
        with DatasetFile(path) as shard:
            _check_tokenizer(shard, header)
            for group, of_shards in lengths.items():
                of_shards.append(shard.stored_lengths(group))
            spans.append(shard.spans)
            # A shard numbers its tasks itself; the dataset numbers them as if it had no shards.
            ids = [id_of_task.setdefault(task, len(id_of_task)) for task in shard.task_names]
            task_ids.append(np.array(ids, np.int32)[shard.task_ids])
            sha256.append(shard.header.content_sha256)
            turn_end_ids |= set(shard.header.turn_end_ids)
    if sum(len(ids) for ids in task_ids) == 0:
        raise InputError(f"{', '.join(header.sources)}: no sample to write")
    with atomic_write(output) as temporary, creating(temporary) as file:
        for group, parts in lengths.items():
            file[f"{group}/offsets"] = _starts(np.concatenate(parts))
        joined = Spans.join(spans)
        for name in ("offsets", "starts", "ends"):
            file[f"spans/{name}"] = getattr(joined, name)
        file["task_ids"] = np.concatenate(task_ids)
        file["task_names"] = fixed_length(list(id_of_task))
        file["shards/names"] = fixed_length(
            [str(path.relative_to(output.parent)) for path in shards]
        )
        file["shards/sha256"] = fixed_length(sha256)
        file["shards/sizes"] = np.array([path.stat().st_size for path in shards], np.int64)
        file["shards/starts"] = _starts(np.array([len(ids) for ids in task_ids]))
        write_header(file.attrs, header)
        write_turn_end_ids(file.attrs, turn_end_ids)
        file.flush()


def _starts(lengths: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    return np.insert(np.cumsum(lengths, dtype=np.int64), 0, 0)


def _check_tokenizer(shard: DatasetFile, header: DatasetHeader) -> None:
    facts = shard.header.tokenizer_sha256, shard.vocab_size, shard.eos_id, shard.start_id
    expected = header.tokenizer_sha256, header.vocab_size, header.eos_id, header.start_id
    if facts != expected or shard.header.special_tokens != header.special_tokens:
        raise InputError(
            f"{shard.path}: its tokenizer is {shard.header.tokenizer_name} with sha256 "
            f"{facts[0][:12]}, but that of the dataset is {header.tokenizer_name} with "
            f"{header.tokenizer_sha256[:12]}; use the same tokenizer files on all hosts"
        )
