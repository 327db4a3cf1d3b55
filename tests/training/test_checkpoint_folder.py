"""Which folders count as checkpoints, and which are kept."""

from pathlib import Path

import pytest

from dynapipe_hpc.data.errors import InputError, RunError
from dynapipe_hpc.training.checkpoint.config import CheckpointConfig
from dynapipe_hpc.training.checkpoint.folder import (
    CheckpointFolder,
    DamagedError,
    Description,
    read_fields,
    write_fields,
)
from dynapipe_hpc.training.counters import Counters

COUNTERS = Counters(n_steps=7, n_updates=6, loss_scale=2.0**15, n_scaled_steps=3, n_skipped_steps=0)


def description(n_done: int) -> Description:
    return Description(n_done, COUNTERS, {"data.seed": 1, "model.head_size": None}, ("ab", "cd"))


def write(folder: CheckpointFolder, *numbers: int) -> None:
    for n_done in numbers:
        folder.begin(n_done)
        folder.finish(description(n_done))


def names(folder: CheckpointFolder) -> list[str]:
    return sorted(path.name for path in folder.path.iterdir())


def test_another_version_is_refused(tmp_path: Path) -> None:
    write_fields(tmp_path / "x.json", "checkpoint", 2, {})
    with pytest.raises(InputError, match=r"of version 2, but this .* version 1; use the") as met:
        read_fields(tmp_path / "x.json", "checkpoint", 1)
    assert not isinstance(met.value, DamagedError)


def test_only_complete_checkpoints_count(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints", CheckpointConfig(keep_last=9))
    assert folder.complete() == []
    write(folder, 5, 10, 1_000_000)
    folder.begin(15)
    assert [path.name for path in folder.complete()] == ["1000000", "000010", "000005"]
    aside = folder.set_aside(folder.complete()[0])
    assert aside.name == "1000000.damaged"
    assert [path.name for path in folder.complete()] == ["000010", "000005"]


def test_what_was_not_finished_is_removed(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, CheckpointConfig())
    write(folder, 5)
    folder.begin(10)
    (tmp_path / ".000001.removed.partial").mkdir()
    (tmp_path / ".something.partial").touch()
    assert [path.name for path in folder.clear()] == [".000010.partial"]
    assert names(folder) == [".something.partial", "000005"]


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        (CheckpointConfig(), ["000004", "000005"]),
        (CheckpointConfig(keep_last=1), ["000005"]),
        (CheckpointConfig(keep_last=1, keep_every=2), ["000002", "000004", "000005"]),
    ],
)
def test_old_checkpoints_are_removed(
    tmp_path: Path, config: CheckpointConfig, kept: list[str]
) -> None:
    folder = CheckpointFolder(tmp_path, config)
    write(folder, 1, 2, 3, 4, 5)
    assert names(folder) == kept


def test_a_checkpoint_that_does_not_fit_is_told_of_in_bytes(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints", CheckpointConfig())
    folder.check_room(1)
    with pytest.raises(RunError, match=r"needs 1,000,000,000,000,000 bytes, but only .* are free"):
        folder.check_room(10**15)


def test_the_best_checkpoint_is_kept_until_another_is_the_best(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints", CheckpointConfig(keep_last=1))
    folder.best = 4
    write(folder, 2, 4, 6, 8)
    assert names(folder) == ["000004", "000008"]
    folder.best = 10
    write(folder, 10, 12)
    assert names(folder) == ["000010", "000012"]
