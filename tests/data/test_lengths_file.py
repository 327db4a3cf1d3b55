"""Files of sample lengths."""

import json
from pathlib import Path
from typing import Any

import pytest

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.lengths_file import read_lengths, samples_of_lengths
from dynapipe_hpc.data.sample import Sample


def write(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_the_last_token_of_a_whole_sample_is_its_target(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", {"name": "a", "batches": [[5, 1], [7]]})
    assert read_lengths(path) == [[(4, 1), (0, 1)], [(6, 1)]]


def test_inputs_and_targets_may_be_apart(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", {"batches": [[5, 1]], "dec_batches": [[2, 3]]})
    assert read_lengths(path) == [[(5, 2), (1, 3)]]


def test_targets_that_a_model_needs_are_missed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", {"batches": [[5, 1]]})
    with pytest.raises(InputError, match="has no dec_batches, the lengths of targets"):
        read_lengths(path, needs_targets=True)


def test_samples_are_numbered_by_their_place() -> None:
    assert samples_of_lengths([(4, 1), (5, 2)]) == [Sample(0, 4, 1), Sample(1, 5, 2)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, r"a\.json: batches: Field required"),
        ([], r"a\.json: content: .* object"),
        ({"batches": []}, r"a\.json: batches: .* at least 1 item"),
        ({"batches": [[3], []]}, r"a\.json: batches, batch 1: .* at least 1 item"),
        ({"batches": [[3], [4, 0]]}, r"batches, batch 1, sample 1: 0: .* greater than or equal"),
        ({"batches": [[3], [4, 2.5]]}, r"batches, batch 1, sample 1: 2\.5: .* valid integer"),
        ({"batches": [["3"]]}, r"batches, batch 0, sample 0: '3': .* valid integer"),
        ({"batches": [[3, 4]], "dec_batches": [[1]]}, r"have \[2\] inputs, .* \[1\] targets"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_lengths(write(tmp_path / "a.json", content))


def test_a_file_that_is_not_there_or_not_json_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.json: cannot be read: No such file"):
        read_lengths(tmp_path / "none.json")
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(InputError, match=r"a\.json: content: Invalid JSON"):
        read_lengths(tmp_path / "a.json")
