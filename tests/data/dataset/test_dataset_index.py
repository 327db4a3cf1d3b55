"""Datasets in shards: the same samples as in one file, and what may be wrong with them."""

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples.samplers import sampler_of
from tests.examples.tokenized import SAMPLES, Tokenized, header, write_samples

from dynapipe_hpc.data.config import DataConfig
from dynapipe_hpc.data.dataset.dataset_file import DatasetFile
from dynapipe_hpc.data.dataset.dataset_header import DatasetHeader
from dynapipe_hpc.data.dataset.dataset_writer import write_index
from dynapipe_hpc.data.dataset.describe_dataset import describe_dataset
from dynapipe_hpc.data.dataset.shard_reader import MAX_OPEN_FILES, ShardError
from dynapipe_hpc.data.dataset.verify_dataset import verify_dataset
from dynapipe_hpc.data.errors import InputError


def write_shards(folder: Path, *shards: list[Tokenized]) -> Path:
    """A dataset x.h5 with shards s/0.h5, s/1.h5, ..."""
    (folder / "s").mkdir()
    paths = [write_samples(folder / "s" / f"{k}.h5", samples) for k, samples in enumerate(shards)]
    write_index(folder / "x.h5", header(), paths)
    return folder / "x.h5"


def samples_of(path: Path) -> list[Tokenized]:
    with DatasetFile(path) as dataset:
        lengths = zip(dataset.input_lengths, dataset.target_lengths, strict=True)
        read = [dataset.read(i, int(n), int(m)) for i, (n, m) in enumerate(lengths)]
        tasks = [dataset.task_names[i] for i in dataset.task_ids]
        return [
            (inputs.tolist(), targets.tolist(), task)
            for (inputs, targets), task in zip(read, tasks, strict=True)
        ]


def many_samples(n: int) -> list[Tokenized]:
    words = np.random.Generator(np.random.PCG64(0))
    return [
        (
            words.integers(0, 9, words.integers(0, 6)).tolist(),
            [*words.integers(0, 9, words.integers(0, 6)).tolist(), 9],
            "abc"[words.integers(0, 3)],
        )
        for _ in range(n)
    ]


@settings(max_examples=10)
@given(cuts=st.lists(st.integers(0, 40), max_size=4).map(sorted))
def test_shards_read_like_one_file(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("dataset")
    samples = many_samples(40)
    ends = [0, *cuts, len(samples)]
    index = write_shards(folder, *(samples[a:b] for a, b in pairwise(ends)))
    whole = write_samples(folder / "whole.h5", samples)
    assert samples_of(index) == samples == samples_of(whole)
    with DatasetFile(index) as one, DatasetFile(whole) as other:
        assert one.task_names == other.task_names
        assert one.start_id == other.start_id
        assert one.task_ids.tolist() == other.task_ids.tolist()
    assert verify_dataset(index) == verify_dataset(whole)


def test_a_shard_that_is_cut_while_it_is_open_is_named(tmp_path: Path) -> None:
    with DatasetFile(write_shards(tmp_path, many_samples(5), many_samples(5))) as dataset:
        dataset.read(7, 1, 1)
        os.truncate(tmp_path / "s" / "1.h5", 1000)
        with pytest.raises(
            ShardError, match=r"shard s/1.h5 .* cannot be read: the file has been truncated"
        ):
            dataset.read(7, 1, 1)


def test_batches_are_those_of_one_file(tmp_path: Path) -> None:
    samples = many_samples(100)
    index = write_shards(tmp_path, samples[:30], samples[30:])
    whole = write_samples(tmp_path / "whole.h5", samples)
    config = DataConfig(dataset="x.h5", max_tokens=8, tokens_per_batch=32)
    batches = []
    for path in (index, whole):
        with DatasetFile(path) as dataset:
            sampler = sampler_of(dataset, config)
            batches.append([sampler.iteration(k) for k in range(60)])
    assert batches[0] == batches[1]


def test_only_the_first_tokens_asked_for_are_read(tmp_path: Path) -> None:
    with DatasetFile(write_shards(tmp_path, SAMPLES[:1], SAMPLES[1:])) as dataset:
        assert [tokens.tolist() for tokens in dataset.read(2, 1, 2)] == [[5], [6, 7]]
        assert [tokens.tolist() for tokens in dataset.read(1, 0, 0)] == [[], []]
        with pytest.raises(ValueError, match="sequence 0 has 3 tokens, not 4"):
            dataset.read(0, 4, 1)


def test_few_of_many_shards_are_open_at_a_time(tmp_path: Path) -> None:
    samples = many_samples(MAX_OPEN_FILES + 9)
    index = write_shards(tmp_path, *([sample] for sample in samples))

    def n_open() -> int:
        links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        return sum("s" in link.readlink().parts for link in links)

    with DatasetFile(index) as dataset:
        for i in [*range(len(samples)), 0, 1]:
            inputs, _ = dataset.read(i, len(samples[i][0]), 0)
            assert inputs.tolist() == samples[i][0]
            assert n_open() <= MAX_OPEN_FILES
        assert n_open() == MAX_OPEN_FILES
    assert n_open() == 0


def test_a_dataset_can_be_moved_with_its_shards(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    write_shards(tmp_path / "here", SAMPLES[:2], SAMPLES[2:])
    (tmp_path / "here").rename(tmp_path / "there")
    assert samples_of(tmp_path / "there" / "x.h5") == SAMPLES


def test_inspect_tells_of_shards(tmp_path: Path) -> None:
    index = write_shards(tmp_path, SAMPLES[:2], SAMPLES[2:])
    assert f"\nshards     2 in {tmp_path / 's'}\n" in describe_dataset(index)


def test_a_missing_shard_is_noticed_at_once(tmp_path: Path) -> None:
    index = write_shards(tmp_path, SAMPLES[:1], SAMPLES[1:])
    (tmp_path / "s" / "1.h5").unlink()
    with pytest.raises(
        InputError,
        match=r"x\.h5: its shard s/1\.h5 \(samples 1 to 2\) cannot be found: No such.*--force",
    ):
        DatasetFile(index)


def test_a_cut_shard_is_noticed_at_once(tmp_path: Path) -> None:
    index = write_shards(tmp_path, SAMPLES[:1], SAMPLES[1:])
    os.truncate(tmp_path / "s" / "0.h5", 1000)
    with pytest.raises(InputError, match=r"its shard s/0\.h5 .* has 1000 bytes, not \d+; restore"):
        DatasetFile(index)


def test_swapped_shards_are_noticed_when_they_are_read(tmp_path: Path) -> None:
    others: list[Tokenized] = [([4, 5, 6], [7, 9], "sum")]
    index = write_shards(tmp_path, SAMPLES[:1], others)
    one, other = tmp_path / "s" / "0.h5", tmp_path / "s" / "1.h5"
    one.rename(tmp_path / "aside")
    other.rename(one)
    (tmp_path / "aside").rename(other)
    with (
        DatasetFile(index) as dataset,
        pytest.raises(InputError, match=r"s/0\.h5 .*holds other samples \(checksum \w+, not"),
    ):
        dataset.read(0, 3, 2)
    with pytest.raises(InputError, match=r"s/0\.h5 .*holds other samples"):
        verify_dataset(index)


def test_a_shard_that_is_no_dataset_any_more_is_named(tmp_path: Path) -> None:
    index = write_shards(tmp_path, SAMPLES)
    shard = tmp_path / "s" / "0.h5"
    shard.write_bytes(bytes(shard.stat().st_size))
    with (
        DatasetFile(index) as dataset,
        pytest.raises(InputError, match=r"s/0\.h5 .*cannot be used: .*not a complete HDF5 file"),
    ):
        dataset.read(0, 3, 2)


def test_a_shard_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    shard = write_samples(tmp_path / "0.h5")
    other = DatasetHeader("letters", "cd" * 32, 10, 9, 9)
    with pytest.raises(
        InputError, match=r"its tokenizer is digits with sha256 abab.* letters with"
    ):
        write_index(tmp_path / "x.h5", other, [shard])
    assert list(tmp_path.iterdir()) == [shard]


def test_shards_without_samples_are_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\.jsonl, b\.jsonl: no sample to write"):
        write_shards(tmp_path, [], [])
    assert not (tmp_path / "x.h5").exists()


def replace(name: str, values: object) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        del file[name]
        file[name] = values

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replace("shards/starts", [0, 2, 1]), "'shards/starts' must start at 0 and never decrease"),
        (replace("shards/starts", [1, 1, 3]), "'shards/starts' must start at 0 and never decrease"),
        (replace("shards/starts", [0, 1, 4]), "'shards/starts' ends at 4, not at 3 samples"),
        (replace("shards/starts", [0, 3]), "the arrays of 'shards' have different lengths"),
        (replace("shards/sizes", [5]), "the arrays of 'shards' have different lengths"),
        (replace("shards/names", [1, 2]), "'shards/names' has shape"),
        (replace("inputs/offsets", [0, 3, 3]), "'inputs/offsets' holds 3 numbers"),
        (replace("task_ids", [0, 1, 2]), "'task_ids' points past the 2 'task_names'"),
    ],
)
def test_a_damaged_index_is_refused(
    tmp_path: Path, change: Callable[[h5py.File], None], message: str
) -> None:
    index = write_shards(tmp_path, SAMPLES[:1], SAMPLES[1:])
    with h5py.File(index, "a") as file:
        change(file)
    with pytest.raises(InputError, match=rf"x\.h5: damaged dataset: .*{message}.*make it again"):
        DatasetFile(index)


def test_lengths_of_other_samples_are_noticed(tmp_path: Path) -> None:
    index = write_shards(tmp_path, SAMPLES[:1], SAMPLES[1:])
    with h5py.File(index, "a") as file:
        replace("inputs/offsets", [0, 2, 3, 4])(file)
    with (
        DatasetFile(index) as dataset,
        pytest.raises(InputError, match="'inputs/offsets' ends at 2, but 'inputs/tokens' holds 3"),
    ):
        dataset.read(0, 1, 1)
