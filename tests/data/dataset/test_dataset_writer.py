"""Writing datasets: whole or not at all."""

import fcntl
from pathlib import Path

import h5py
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples.tokenized import SAMPLES, Tokenized, header, write_samples

from dynapipe_hpc.data.dataset.dataset_file import DatasetFile
from dynapipe_hpc.data.dataset.dataset_header import DatasetHeader
from dynapipe_hpc.data.dataset.dataset_writer import DatasetWriter, creating
from dynapipe_hpc.data.token_block import TokenBlock

TOKENS = st.lists(st.integers(0, 9), max_size=5)
BLOCKS = st.lists(
    st.lists(
        st.tuples(TOKENS, TOKENS.map(lambda t: [*t, 9]), st.text("abé", min_size=1)), max_size=4
    ),
    max_size=4,
)


@given(blocks=BLOCKS)
def test_what_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, blocks: list[list[Tokenized]]
) -> None:
    path = tmp_path_factory.mktemp("dataset") / "x.h5"
    with DatasetWriter.create(path, header()) as writer:
        for block in blocks:
            writer.append(TokenBlock.of(block, 10))
    with DatasetFile(path) as dataset:
        found = []
        for i in range(dataset.n_samples):
            lengths = int(dataset.input_lengths[i]), int(dataset.target_lengths[i])
            inputs, targets = dataset.read(i, *lengths)
            task = dataset.task_names[dataset.task_ids[i]]
            found.append((inputs.tolist(), targets.tolist(), task))
    assert found == [sample for block in blocks for sample in block]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_nothing_is_left_of_an_interrupted_dataset(
    tmp_path: Path, error: type[BaseException]
) -> None:
    with pytest.raises(error), DatasetWriter.create(tmp_path / "x.h5", header()) as writer:
        writer.append(TokenBlock.of(SAMPLES, 10))
        raise error
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_keeps_the_dataset_that_was_there(tmp_path: Path) -> None:
    path = write_samples(tmp_path / "x.h5")
    before = path.read_bytes()
    with pytest.raises(KeyboardInterrupt), DatasetWriter.create(path, header()):
        raise KeyboardInterrupt
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_dataset_has_no_name_before_it_is_complete(tmp_path: Path) -> None:
    with DatasetWriter.create(tmp_path / "x.h5", header()) as writer:
        writer.append(TokenBlock.of(SAMPLES, 10))
        assert not (tmp_path / "x.h5").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["x.h5"]


def test_the_names_of_thousands_of_sources_fit(tmp_path: Path) -> None:
    sources = tuple(f"part-{i:05}-of-05000.jsonl" for i in range(5000))
    with DatasetWriter.create(tmp_path / "x.h5", DatasetHeader("t", "0", 10, 9, 9, sources)):
        pass
    with DatasetFile(tmp_path / "x.h5") as dataset:
        assert dataset.header.sources == sources


def test_the_file_has_no_types_of_variable_length(tmp_path: Path) -> None:
    kinds: set[str] = set()
    with h5py.File(write_samples(tmp_path / "x.h5")) as file:
        kinds |= {file.attrs.get_id(name).dtype.kind for name in file.attrs}
        file.visititems(
            lambda _, item: kinds.add(item.dtype.kind) if isinstance(item, h5py.Dataset) else None
        )
    assert kinds == {"S", "i", "u"}


def test_writing_takes_no_lock_which_some_file_systems_refuse(tmp_path: Path) -> None:
    with (tmp_path / "x.h5").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with creating(tmp_path / "x.h5") as file:
            file["a"] = [1]
    with h5py.File(tmp_path / "x.h5") as written:
        assert list(written["a"]) == [1]
