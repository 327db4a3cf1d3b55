"""Datasets: what is written is read, by one process or joined of parts, and damage is named."""

import fcntl
import os
import zlib
from contextlib import suppress
from itertools import starmap
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples.tokenized import Tokenized, header, with_array, with_header, write_samples

from dynapipe_hpc.data.dataset.dataset_file import DamagedSampleError, DatasetFile, verify_dataset
from dynapipe_hpc.data.dataset.dataset_writer import DatasetWriter, creating
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.data.token_block import TokenBlock, TokenizedSample

SPANS = [[(0, 2), (3, 5)], [], [(1, 3)]]


def samples_of(path: Path) -> list[Tokenized]:
    with DatasetFile(path) as dataset:
        lengths = zip(dataset.input_lengths.tolist(), dataset.target_lengths.tolist(), strict=True)
        read = [dataset.read(Sample(i, *both))[:2] for i, both in enumerate(lengths)]
        tasks = [dataset.header.task_names[i] for i in dataset.task_ids]
        return [
            (inputs.tolist(), targets.tolist(), task)
            for (inputs, targets), task in zip(read, tasks, strict=True)
        ]


TOKENS = st.lists(st.integers(0, 9), max_size=5)
BLOCKS = st.lists(
    st.lists(
        st.tuples(TOKENS, TOKENS.map(lambda t: [*t, 9]), st.text("abé", min_size=1)), max_size=4
    ),
    max_size=4,
)


@settings(max_examples=50)
@given(blocks=BLOCKS)
def test_what_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, blocks: list[list[Tokenized]]
) -> None:
    folder = tmp_path_factory.mktemp("dataset")
    with DatasetWriter.create(folder / "x.h5", header()) as writer:
        for block in blocks:
            writer.append(TokenBlock.from_samples(list(starmap(TokenizedSample, block)), 10))
    written = [sample for block in blocks for sample in block]
    assert samples_of(folder / "x.h5") == written
    verify_dataset(folder / "x.h5")


def test_the_file_is_as_its_page_says(tmp_path: Path) -> None:
    """Flat arrays, whose bytes other programs can map, and a CRC of each sample."""
    path = write_samples(tmp_path / "x.h5", spans=SPANS)
    with h5py.File(path) as file:
        assert file.attrs["format"] == b"dynapipe-hpc dataset"
        assert file.attrs["start_id"] == 9
        assert file["inputs/offsets"][...].tolist() == [0, 3, 3, 4]
        assert file["targets/offsets"][...].tolist() == [0, 2, 3, 7]
        assert file["spans/offsets"][...].tolist() == [0, 2, 2, 3]
        assert file["spans/starts"][...].tolist() == [0, 3, 1]
        assert file["spans/ends"][...].tolist() == [2, 5, 3]
        assert file["task_ids"][...].tolist() == [0, 1, 0]
        places = [file[f"{side}/tokens"].id.get_offset() for side in ("inputs", "targets")]
        crcs = file["crcs"][...].tolist()
    inputs, targets = (
        np.memmap(path, "<u2", "r", place, n) for place, n in zip(places, (4, 7), strict=True)
    )
    assert (inputs.tolist(), targets.tolist()) == ([1, 2, 3, 5], [4, 9, 9, 6, 7, 8, 9])
    assert crcs[0] == zlib.crc32(inputs[:3].tobytes() + targets[:2].tobytes())


def test_a_file_that_is_cut_while_it_is_open_ends_no_process(tmp_path: Path) -> None:
    path = write_samples(tmp_path / "x.h5")
    with DatasetFile(path) as dataset:
        read = dataset.read(Sample(0, 3, 2))[:2]
        read_before = [side.tolist() for side in read]
        os.truncate(path, 1000)
        with pytest.raises(
            InputError, match=r"x.h5: cannot read sample 2: the file has been truncated to 1,000"
        ):
            dataset.read(Sample(2, 1, 4))
        # What was checked does not change with the file, nor is it read again.
        assert [side.tolist() for side in read] == read_before
        assert dataset.read(Sample(0, 3, 2)).inputs.tolist() == read_before[0]


def test_without_a_start_token_the_first_token_of_a_sample_is_only_read(tmp_path: Path) -> None:
    samples = [([1, 2, 3], [4, 9], "a"), ([], [5, 6, 9], "a")]
    with DatasetFile(write_samples(tmp_path / "x.h5", samples, has_start=False)) as dataset:
        assert dataset.header.start_id is None
        assert dataset.input_lengths.tolist() == [2, 0]
        assert dataset.target_lengths.tolist() == [2, 2]
        one, other = dataset.read(Sample(0, 1, 2)), dataset.read(Sample(1, 0, 2))
        assert [side.tolist() for side in one[:2]] == [[2], [4, 9]]
        assert [side.tolist() for side in other[:2]] == [[], [6, 9]]
        assert (one.start, other.start) == (1, 5)
        told = r"sample 0 has 2 input \+ 2 target tokens, not 3 input \+ 1 target tokens"
        with pytest.raises(ValueError, match=told):
            dataset.read(Sample(0, 3, 1))


def test_a_lock_on_the_file_stops_nobody(tmp_path: Path) -> None:
    path = write_samples(tmp_path / "x.h5")
    with path.open() as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="unable to lock file"):
            h5py.File(path, "r", locking=True)
        with DatasetFile(path) as one, DatasetFile(path) as other:
            assert one.read(Sample(0, 1, 1)).inputs == other.read(Sample(0, 1, 1)).inputs
    with (tmp_path / "y.h5").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with creating(tmp_path / "y.h5") as file:
            file["a"] = [1]


@pytest.mark.parametrize(("vocab_size", "bits"), [(2**16, 16), (2**16 + 1, 32)])
def test_tokens_take_two_bytes_if_they_can(tmp_path: Path, vocab_size: int, bits: int) -> None:
    samples = [([vocab_size - 1], [0], "t")]
    with DatasetFile(write_samples(tmp_path / "x.h5", samples, vocab_size)) as dataset:
        [token] = dataset.read(Sample(0, 1, 1)).inputs
        assert (token, token.dtype) == (vocab_size - 1, f"uint{bits}")


def test_a_token_beyond_the_vocabulary_is_named(tmp_path: Path) -> None:
    path = write_samples(tmp_path / "x.h5", [([1], [2, 0], "t"), ([3, 9, 1], [0], "t")], 50)
    with_header(path, vocab_size=9, eos_id=0, start_id=0)
    with DatasetFile(path) as dataset:
        assert dataset.read(Sample(0, 1, 2)).targets.tolist() == [2, 0]
        with pytest.raises(InputError, match=r"x.h5: sample 1 holds token 9, but 'vocab_size'"):
            dataset.read(Sample(1, 1, 1))


def test_a_damaged_sample_is_named_whenever_it_is_read(tmp_path: Path) -> None:
    path = write_samples(tmp_path / "x.h5", spans=SPANS)
    with DatasetFile(path) as dataset:
        assert verify_dataset(path) == dataset.content_sha256
    for name, place in (("inputs/tokens", 1), ("targets/tokens", 2)):  # of samples 0 and 1
        with h5py.File(path, "a") as file:
            file[name][place] = 7
    with DatasetFile(path) as dataset:
        dataset.read(Sample(2, 1, 4))
        damage = r"x\.h5: sample 1 is damaged; restore .*preprocess again .*--verify counts"
        for _ in range(2):
            with pytest.raises(DamagedSampleError, match=damage):
                dataset.read(Sample(1, 0, 1))
    with pytest.raises(DamagedSampleError, match=r"2 of 3 samples are damaged \(0, 1\); restore"):
        verify_dataset(path)


def test_no_flipped_byte_changes_samples_unnoticed(tmp_path: Path) -> None:
    """Of the bytes that are not samples, HDF5 checks most itself; the others do not matter."""
    path = write_samples(tmp_path / "x.h5", spans=SPANS)
    content, expected = path.read_bytes(), samples_of(path)
    n_noticed = 0
    for position in np.random.Generator(np.random.PCG64(0)).integers(0, len(content), 400):
        changed = bytearray(content)
        changed[position] ^= 0x10
        path.write_bytes(changed)
        n_noticed += 1
        with suppress(InputError):
            assert samples_of(path) == expected
            n_noticed -= 1
    assert n_noticed > 0


WRITTEN = "is not as it was written"


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("targets/offsets", [0, 2, 4, 7], WRITTEN),
        ("targets/offsets", [0, 7], WRITTEN),
        ("inputs/offsets", [[0]], r"has shape \(1, 1\)"),
        ("task_ids", [0, 1, 1], WRITTEN),
        ("spans/offsets", [0, 2, 3, 3], WRITTEN),
        ("spans/starts", [0, 3, 0], WRITTEN),
        ("spans/ends", [2, 5], WRITTEN),
        ("crcs", [0, 0, 0], WRITTEN),
        ("header", b"{}", WRITTEN),
    ],
)
def test_a_damaged_dataset_is_refused(tmp_path: Path, name: str, values: Any, message: str) -> None:
    path = with_array(write_samples(tmp_path / "x.h5", spans=SPANS), name, values)
    told = rf"x\.h5: not a dataset to read: '{name}' {message}.*make it again"
    with pytest.raises(InputError, match=told):
        DatasetFile(path)
