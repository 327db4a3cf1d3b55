"""Several datasets read as one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.examples.tokenized import SAMPLES, header, write_samples

from dynapipe_hpc.data.config import DataConfig
from dynapipe_hpc.data.dataset.dataset_file import DatasetFile
from dynapipe_hpc.data.dataset.dataset_writer import DatasetWriter
from dynapipe_hpc.data.dataset.joined_datasets import JoinedDatasets
from dynapipe_hpc.data.dataset.long_samples import describe_long, used_of
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.token_block import TokenBlock

MORE = [([7] * 9, [8, 9], "sum"), ([2], [4, 9], "product")]


def joined(folder: Path) -> JoinedDatasets:
    one = write_samples(folder / "one.h5", SAMPLES)
    two = write_samples(folder / "two.h5", MORE)
    return JoinedDatasets({"first": DatasetFile(one), "second": DatasetFile(two)})


def config_of(**settings: object) -> DataConfig:
    mixed = [{"dataset": "one.h5"}, {"dataset": "two.h5"}]
    tables = {"mixture": mixed, "max_tokens": 8, "tokens_per_batch": 8, **settings}
    return DataConfig.model_validate(tables)


def test_samples_of_all_datasets_are_numbered_one_after_the_other(tmp_path: Path) -> None:
    dataset = joined(tmp_path)
    everything = [*SAMPLES, *MORE]
    for i, (inputs, targets, _) in enumerate(everything):
        lengths = dataset.input_lengths[i], dataset.target_lengths[i]
        assert lengths == (len(inputs), len(targets))
        found = dataset.read(i, len(inputs), len(targets))
        assert [side.tolist() for side in found] == [inputs, targets]
    assert (dataset.vocab_size, dataset.eos_id) == (10, 9)
    assert len(dataset.task_ids) == len(everything)


def test_equal_names_of_tasks_in_two_datasets_are_two_tasks(tmp_path: Path) -> None:
    dataset = joined(tmp_path)
    tasks = [dataset.task_names[i] for i in dataset.task_ids]
    assert tasks == ["first/sum", "first/copy", "first/sum", "second/sum", "second/product"]


def test_every_dataset_loses_its_own_long_samples(tmp_path: Path) -> None:
    dataset, config = joined(tmp_path), config_of(long_samples="drop", max_tokens=4)
    used = used_of(dataset, config)
    assert used.kept.tolist() == [1, 4]
    assert list(describe_long(dataset, config)) == [
        "one: 2 of 3 samples are longer than data.max_tokens (4): 2 are left out "
        "(data.long_samples = 'drop'); 10 of 11 tokens are not used",
        "two: 1 of 2 samples are longer than data.max_tokens (4): 1 are left out "
        "(data.long_samples = 'drop'); 11 of 14 tokens are not used",
    ]
    with pytest.raises(InputError, match=r"all 2 samples of 'two.h5' are longer"):
        used_of(dataset, config_of(long_samples="drop", max_tokens=2))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"tokenizer_sha256": "cd" * 32}, f"two.h5 has tokenizer_sha256 = {'cd' * 32}"),
        ({"vocab_size": 11}, "two.h5 has vocab_size = 11"),
        ({"eos_id": 3}, "two.h5 has eos_id = 3"),
    ],
)
def test_tokens_of_another_tokenizer_are_refused(
    tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    one, two = write_samples(tmp_path / "one.h5"), tmp_path / "two.h5"
    with DatasetWriter.create(two, replace(header(), **change)) as writer:
        writer.append(TokenBlock.from_samples(SAMPLES, 10))
    with pytest.raises(InputError, match=told):
        JoinedDatasets({"one": DatasetFile(one), "two": DatasetFile(two)})


def test_a_sample_is_read_after_the_start_token_of_its_dataset(tmp_path: Path) -> None:
    chat = [([7, 2, 4], [3, 9], "sum")]
    one = DatasetFile(write_samples(tmp_path / "one.h5", SAMPLES[:1], spans=[[(1, 2), (3, 5)]]))
    spans = [[(0, 2), (3, 5)]]
    two = DatasetFile(write_samples(tmp_path / "two.h5", chat, spans=spans, has_start=False))
    dataset = JoinedDatasets({"one": one, "two": two})
    assert dataset.start_id is None
    assert [dataset.first_token(i) for i in range(2)] == [9, 7]
    assert [side.tolist() for side in dataset.read(1, 2, 2)] == [[2, 4], [3, 9]]
    assert [dataset.predicted_spans.of_sample(i) for i in range(2)] == [
        [(1, 2), (3, 5)],
        [(0, 1), (2, 4)],
    ]
    assert JoinedDatasets({"one": one, "other": one}).start_id == 9
