"""Checksums of datasets are compared on request."""

from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np
import pytest
from tests.examples.tokenized import SAMPLES, header, write_samples

from dynapipe_hpc.data.dataset.dataset_file import DatasetFile
from dynapipe_hpc.data.dataset.dataset_writer import write_index
from dynapipe_hpc.data.dataset.verify_dataset import is_intact, verify_dataset
from dynapipe_hpc.data.errors import InputError


def test_the_checksum_is_the_one_written_along(tmp_path: Path) -> None:
    path = write_samples(tmp_path / "x.h5")
    with DatasetFile(path) as dataset:
        assert verify_dataset(path) == dataset.header.content_sha256
    assert is_intact(path)


@pytest.mark.parametrize("array", ["inputs/tokens", "targets/tokens"])
def test_one_flipped_byte_is_found(tmp_path: Path, array: str) -> None:
    path = write_samples(tmp_path / "x.h5")
    write_index(tmp_path / "i.h5", header(), [path])
    with h5py.File(path, "a") as file:
        file[array][3] ^= 1
    for damaged in (path, tmp_path / "i.h5"):
        with pytest.raises(
            InputError,
            match=r"x\.h5: samples 0 to 2 of .* are damaged: their checksum is \w+, not \w+",
        ):
            verify_dataset(damaged)
    assert not is_intact(path)


def test_no_flipped_byte_changes_samples_unnoticed(tmp_path: Path) -> None:
    """Of the bytes that are not samples, HDF5 checks most itself; the others do not matter."""
    path = write_samples(tmp_path / "x.h5")
    content, expected = path.read_bytes(), verify_dataset(path)
    n_noticed = 0
    for position in np.random.Generator(np.random.PCG64(0)).integers(0, len(content), 200):
        changed = bytearray(content)
        changed[position] ^= 0x10
        path.write_bytes(changed)
        n_noticed += 1
        with suppress(InputError):
            assert verify_dataset(path) == expected
            n_noticed -= 1
    assert n_noticed > 0


def test_a_dataset_from_before_there_were_checksums_is_read_but_not_verified(
    tmp_path: Path,
) -> None:
    path = write_samples(tmp_path / "x.h5")
    with h5py.File(path, "a") as file:
        del file.attrs["content_sha256"]
    with DatasetFile(path) as dataset:
        assert dataset.read(0, 3, 2)[0].tolist() == SAMPLES[0][0]
    with pytest.raises(InputError, match=r"x\.h5: has no checksum \(written by an older"):
        verify_dataset(path)
