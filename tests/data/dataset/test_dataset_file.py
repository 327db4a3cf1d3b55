"""Reading datasets, good ones and others."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from tests.examples.tokenized import SAMPLES, write_samples

from dynapipe_hpc.data.dataset.dataset_file import DatasetFile
from dynapipe_hpc.data.errors import InputError

Change = Callable[[h5py.File], None]


def test_a_dataset_knows_lengths_and_tasks(tmp_path: Path) -> None:
    with DatasetFile(write_samples(tmp_path / "x.h5")) as dataset:
        assert dataset.n_samples == 3
        assert dataset.input_lengths.tolist() == [3, 0, 1]
        assert dataset.target_lengths.tolist() == [2, 1, 4]
        assert dataset.task_ids.tolist() == [0, 1, 0]
        assert dataset.task_names == ("sum", "copy")
        assert (dataset.vocab_size, dataset.eos_id) == (10, 9)
        assert dataset.header.sources == ("a.jsonl", "b.jsonl")
        assert dataset.header.created.endswith("+00:00")


def test_only_the_first_tokens_asked_for_are_read(tmp_path: Path) -> None:
    with DatasetFile(write_samples(tmp_path / "x.h5")) as dataset:
        for i, (inputs, targets, _) in enumerate(SAMPLES):
            for n_inputs in range(len(inputs) + 1):
                for n_targets in range(len(targets) + 1):
                    found = dataset.read(i, n_inputs, n_targets)
                    assert found[0].tolist() == inputs[:n_inputs]
                    assert found[1].tolist() == targets[:n_targets]


def test_a_sample_ends_where_the_next_begins(tmp_path: Path) -> None:
    dataset = DatasetFile(write_samples(tmp_path / "x.h5"))
    with dataset, pytest.raises(ValueError, match="sequence 0 has 3 tokens, not 4"):
        dataset.read(0, 4, 1)


def test_a_file_that_is_cut_while_it_is_open_gives_no_zeros(tmp_path: Path) -> None:
    path = write_samples(tmp_path / "x.h5")
    with DatasetFile(path) as dataset:
        dataset.read(0, 3, 2)
        os.truncate(path, 1000)
        with pytest.raises(
            InputError, match=r"x.h5: cannot read sample 2: the file has been truncated to"
        ):
            dataset.read(2, 1, 4)


def test_without_a_start_token_the_first_token_of_a_sample_is_only_read(tmp_path: Path) -> None:
    samples = [([1, 2, 3], [4, 9], "a"), ([], [5, 6, 9], "a")]
    with DatasetFile(write_samples(tmp_path / "x.h5", samples, has_start=False)) as dataset:
        assert dataset.start_id is None
        assert [dataset.first_token(i) for i in range(2)] == [1, 5]
        assert dataset.input_lengths.tolist() == [2, 0]
        assert dataset.target_lengths.tolist() == [2, 2]
        assert [side.tolist() for side in dataset.read(0, 1, 2)] == [[2], [4, 9]]
        assert [side.tolist() for side in dataset.read(1, 0, 2)] == [[], [6, 9]]
        with pytest.raises(ValueError, match="sequence 0 has 2 tokens, not 3"):
            dataset.read(0, 3, 1)
    with pytest.raises(InputError, match="sample 1 has one token and no start token"):
        DatasetFile(write_samples(tmp_path / "y.h5", has_start=False))


def test_lengths_outlive_the_file(tmp_path: Path) -> None:
    with DatasetFile(write_samples(tmp_path / "x.h5")) as dataset:
        pass
    assert dataset.input_lengths.sum() == 4


def test_a_lock_on_the_file_stops_nobody(tmp_path: Path) -> None:
    path = write_samples(tmp_path / "x.h5")
    with path.open() as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="unable to lock file"):
            h5py.File(path, "r", locking=True)
        with DatasetFile(path) as one, DatasetFile(path) as other:
            assert one.read(0, 1, 1)[0].tolist() == other.read(0, 1, 1)[0].tolist()


@pytest.mark.parametrize(("vocab_size", "bits"), [(2**16, 16), (2**16 + 1, 32)])
def test_tokens_take_two_bytes_if_they_can(tmp_path: Path, vocab_size: int, bits: int) -> None:
    samples = [([vocab_size - 1], [0], "t")]
    with DatasetFile(write_samples(tmp_path / "x.h5", samples, vocab_size)) as dataset:
        [token], _ = dataset.read(0, 1, 1)
        assert (token, token.dtype) == (vocab_size - 1, f"uint{bits}")


def test_a_token_beyond_the_vocabulary_is_named(tmp_path: Path) -> None:
    path = write_samples(tmp_path / "x.h5", [([1], [2, 0], "t"), ([3, 9, 1], [0], "t")], 50)
    with h5py.File(path, "a") as file:
        file["inputs/tokens"][2] = 51
    with DatasetFile(path) as dataset:
        assert dataset.read(0, 1, 2)[1].tolist() == [2, 0]
        assert dataset.read(1, 1, 1)[0].tolist() == [3]
        with pytest.raises(InputError, match=r"x.h5: sample 1 holds token 51, but 'vocab_size' is"):
            dataset.read(1, 3, 1)


def test_a_missing_dataset_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(
        InputError,
        match=r"none.h5: not a dataset: No such file or directory; make it with dynapipe-hpc pre",
    ):
        DatasetFile(tmp_path / "none.h5")


def test_other_files_are_no_datasets(tmp_path: Path) -> None:
    (tmp_path / "x.h5").write_text('{"inputs": "no HDF5"}\n' * 100)
    with pytest.raises(InputError, match=r"x.h5: not a complete HDF5 file \(.*signature.*again"):
        DatasetFile(tmp_path / "x.h5")


def test_other_hdf5_files_are_no_datasets(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["forward_ms"] = np.ones(3)
    with pytest.raises(InputError, match=r"x\.h5: an HDF5 file, but not a dataset; make it again"):
        DatasetFile(tmp_path / "x.h5")


@pytest.mark.parametrize("kept", [0.3, 0.7, 0.99])
def test_a_cut_file_is_noticed(tmp_path: Path, kept: float) -> None:
    path = write_samples(tmp_path / "x.h5")
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(InputError, match=r"x.h5: not a complete HDF5 file \(.*truncated"):
        DatasetFile(path)


def set_version(file: h5py.File) -> None:
    file.attrs["schema_version"] = 5


def replace(name: str, values: object) -> Change:
    def change(file: h5py.File) -> None:
        del file[name]
        file[name] = values

    return change


def delete(name: str) -> Change:
    def change(file: h5py.File) -> None:
        del file[name]

    return change


def set_start(file: h5py.File) -> None:
    file.attrs["start_id"] = 10


def delete_attribute(file: h5py.File) -> None:
    del file.attrs["eos_id"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_version, "has schema version 5, but this dynapipe-hpc reads 3 and 4; make it again"),
        (delete("inputs/tokens"), "damaged dataset: 'inputs/tokens' is missing"),
        (delete("targets"), "'targets/offsets' is missing"),
        (delete("task_ids"), "'task_ids' is missing"),
        (delete("task_names"), "'task_names' is missing"),
        (set_start, "damaged dataset: start_id is 10, but vocab_size 10"),
        (delete_attribute, "damaged dataset: .*eos_id"),
        (
            replace("inputs/tokens", np.ones(4)),
            r"'inputs/tokens' has shape \(4,\) and type float64",
        ),
        (replace("inputs/offsets", [[0]]), r"'inputs/offsets' has shape \(1, 1\)"),
        (
            replace("inputs/offsets", [0, 3, 2, 4]),
            "'inputs/offsets' must start at 0 and never decrease",
        ),
        (
            replace("inputs/offsets", [1, 3, 3, 4]),
            "'inputs/offsets' must start at 0 and never decrease",
        ),
        (replace("inputs/offsets", [0, 3, 3, 5]), "ends at 5, but 'inputs/tokens' holds 4"),
        (replace("targets/offsets", [0, 7]), "holds 2 numbers, but 'task_ids' has 3.*need 4"),
        (replace("targets/offsets", [0, 2, 2, 7]), "sample 1 has an empty target"),
        (replace("task_ids", [0, 1, 2]), "'task_ids' points past the 2 'task_names'"),
        (replace("task_ids", [0, -1, 0]), "'task_ids' points past the 2 'task_names'"),
    ],
)
def test_a_damaged_dataset_is_refused(tmp_path: Path, change: Change, message: str) -> None:
    path = write_samples(tmp_path / "x.h5")
    with h5py.File(path, "a") as file:
        change(file)
    with pytest.raises(InputError, match=rf"x\.h5: .*{message}"):
        DatasetFile(path)
