"""Files of sample lengths."""

import json
from pathlib import Path
from typing import Any

import pytest

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.lengths_file import read_lengths


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
