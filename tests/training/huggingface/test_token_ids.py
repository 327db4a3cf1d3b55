"""Token ids that a run adds to the `generation_config.json` of its model."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.examples.training_case import SHAPE

from dynapipe_hpc.training.huggingface.token_ids import (
    add_end_ids,
    read_end_ids,
    write_token_ids,
)


def written(folder: Path, **files: dict[str, Any]) -> Path:
    (folder / "huggingface").mkdir()
    for name, values in files.items():
        (folder / "huggingface" / f"{name}.json").write_text(json.dumps(values))
    return folder / "huggingface"


def values_in(folder: Path) -> Any:
    return json.loads((folder / "generation_config.json").read_text())


@pytest.mark.parametrize("ids", [96, [96]])
def test_tokens_that_end_turns_stand_beside_that_of_the_model(tmp_path: Path, ids: object) -> None:
    folder = written(tmp_path, config={}, generation_config={"eos_token_id": ids, "top_p": 0.9})
    write_token_ids(tmp_path, SHAPE, 1, [98])
    assert values_in(folder) == {"eos_token_id": [96, 98], "top_p": 0.9}
    assert read_end_ids(folder) == [96, 98]


def test_a_model_that_stops_there_keeps_its_file(tmp_path: Path) -> None:
    folder = written(tmp_path, config={}, generation_config={"eos_token_id": [98, 96]})
    before = (folder / "generation_config.json").read_bytes()
    write_token_ids(tmp_path, SHAPE, 1, [96, 98])
    assert (folder / "generation_config.json").read_bytes() == before


def test_without_a_file_the_ids_of_the_configuration_are_kept(tmp_path: Path) -> None:
    config = {"eos_token_id": 96, "bos_token_id": 1, "pad_token_id": None, "hidden_size": 8}
    folder = written(tmp_path, config=config)
    add_end_ids(folder, [96])
    assert not (folder / "generation_config.json").exists()
    add_end_ids(folder, [98])
    assert values_in(folder) == {"bos_token_id": 1, "eos_token_id": [96, 98]}
