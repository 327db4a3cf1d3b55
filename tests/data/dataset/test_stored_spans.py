"""Spans of trained tokens in files: what is written is read."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np
import pytest
from tests.examples.tokenized import SAMPLES, header, write_samples

from dynapipe_hpc.data.dataset.dataset_file import DatasetFile
from dynapipe_hpc.data.dataset.dataset_writer import write_index
from dynapipe_hpc.data.dataset.verify_dataset import SamplesDifferError, verify_dataset
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.spans import Span

SPANS = [[(0, 2), (3, 5)], [], [(1, 3)]]


def spans_in(path: Path) -> list[list[Span]]:
    with DatasetFile(path) as dataset:
        return [dataset.spans.of_sample(i) for i in range(dataset.n_samples)]


def test_spans_are_read_as_they_were_written(tmp_path: Path) -> None:
    assert spans_in(write_samples(tmp_path / "x.h5", spans=SPANS)) == SPANS
    assert spans_in(write_samples(tmp_path / "y.h5")) == [[], [], []]


def test_spans_of_shards_are_those_of_one_file(tmp_path: Path) -> None:
    whole = write_samples(tmp_path / "whole.h5", SAMPLES * 2, spans=SPANS * 2)
    shards = [
        write_samples(tmp_path / "0.h5", SAMPLES[:1], spans=SPANS[:1]),
        write_samples(tmp_path / "1.h5", SAMPLES[1:], spans=SPANS[1:]),
        write_samples(tmp_path / "2.h5", SAMPLES, spans=SPANS),
    ]
    write_index(tmp_path / "x.h5", header(), shards)
    assert spans_in(tmp_path / "x.h5") == SPANS * 2
    assert verify_dataset(tmp_path / "x.h5") == verify_dataset(whole)


def test_the_checksum_covers_spans(tmp_path: Path) -> None:
    path = write_samples(tmp_path / "x.h5", spans=SPANS)
    verify_dataset(path)
    with h5py.File(path, "a") as file:
        file["spans/starts"][0] = 1
    with pytest.raises(SamplesDifferError, match=r"samples 0 to 2 of .* are damaged"):
        verify_dataset(path)


def checksum_without_spans() -> str:
    """As docs/formats.md says: of tokens, lengths and tasks."""
    parts = []
    for k in range(2):
        sides = [sample[k] for sample in SAMPLES]
        parts.append(np.concatenate([np.array(side, "<u2") for side in sides]).tobytes())
        parts.append(np.array([len(side) for side in sides], "<i8").tobytes())
    parts.append(b"3 sum4 copy3 sum")
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def test_without_spans_the_checksum_is_of_tokens_lengths_and_tasks(tmp_path: Path) -> None:
    assert verify_dataset(write_samples(tmp_path / "x.h5")) == checksum_without_spans()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"offsets": [0, 2, 3]}, "'spans/offsets' holds 3 numbers, but 3 samples need 4"),
        ({"offsets": [0, 2, 2, 4]}, "ends at 4, but there are 3 'spans/starts' and 3 'spans/ends'"),
        ({"starts": [-1, 3, 1]}, "sample 0 has the span -1 to 2, which is empty, beyond"),
        ({"starts": [0, 1, 1]}, "sample 0 has the span 1 to 5, which"),
        ({"starts": [2, 3, 1]}, "sample 0 has the span 2 to 2, which"),
        ({"ends": [2, 5, 6]}, "sample 2 has the span 1 to 6, which"),
        ({"starts": [0, 3, 2]}, "sample 2 has spans, but none has the first token of its target"),
        ({"offsets": [0, 2, 3, 3]}, "sample 1 has the span 1 to 3, which"),
    ],
)
def test_wrong_spans_are_refused(
    tmp_path: Path, changes: dict[str, Sequence[int]], message: str
) -> None:
    path = write_samples(tmp_path / "x.h5", spans=SPANS)
    with h5py.File(path, "a") as file:
        for name, values in changes.items():
            kind = file[f"spans/{name}"].dtype
            del file[f"spans/{name}"]
            file[f"spans/{name}"] = np.array(values, kind)
    with pytest.raises(InputError, match=rf"x\.h5: damaged dataset: .*{message}"):
        DatasetFile(path)
