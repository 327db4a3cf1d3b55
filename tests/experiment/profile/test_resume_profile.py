"""A profile that was interrupted continues where it was."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI
from tests.jobs.tiny_experiment import tiny_experiment, tiny_t5_experiment

from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.profile.begun_table import begun_table
from dynapipe_hpc.experiment.profile.grid import ProfileGrid
from dynapipe_hpc.experiment.profile.profile import profile
from dynapipe_hpc.experiment.profile.rounds import StackRounds
from dynapipe_hpc.experiment.profile.rounds_file import RoundsFile
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.planner.cost.table.profile_file import read_table, write_table
from dynapipe_hpc.planner.cost.table.profile_table import ProfileTable

GPT, T5 = tiny_experiment(), tiny_t5_experiment(n_stages=2)
FOUND = StackRounds(3, np.ones((1, 2, 2, 3)), (np.full((1, 2, 2, 2), 5.0),))


class InterruptedByTestError(Exception):
    pass


def interrupt_at(limit: float) -> Callable[[float], None]:
    def check(share: float) -> None:
        if share >= limit:
            raise InterruptedByTestError

    return check


def measure(config: ExperimentConfig, path: Path, on_progress: Callable[[float], None]) -> None:
    """As the verb does, on one rank, with the fewest rounds."""
    grid = ProfileGrid.from_config(config)
    begun = begun_table(path, config, grid, n_ranks=1)
    for table in profile(
        Job(MPI.COMM_SELF),
        config,
        grid,
        repetition_s=0.0,
        on_progress=on_progress,
        begun=begun,
        beside=path,
    ):
        assert table is not None
        write_table(table, path)


def kept(path: Path) -> RoundsFile:
    return RoundsFile(path, read_table(path).created)


@pytest.mark.parametrize(
    ("config", "limit", "group", "n_done"),
    [
        (GPT, 0.6, "padded none layer", 0),
        (GPT, 0.99, "padded none layer", 1),
        (T5, 0.99, "padded none encoder", 2),
        (T5, 0.99, "padded none decoder", 1),
    ],
)
def test_rounds_that_were_measured_are_not_measured_again(
    config: ExperimentConfig, limit: float, group: str, n_done: int, tmp_path: Path
) -> None:
    path = tmp_path / "costs.h5"
    with pytest.raises(InterruptedByTestError):
        measure(config, path, interrupt_at(limit))
    before, layers = kept(path).get(group), read_table(path).layers
    assert before is not None and len(before.times_ms) == n_done
    assert layers == {}
    shares: list[float] = []
    measure(config, path, shares.append)
    assert shares[0] > (limit - 0.34 if config is GPT else 0.8)
    assert read_table(path).layers.keys()
    assert not kept(path).path.exists()


def test_what_was_kept_is_in_the_table(tmp_path: Path) -> None:
    path = tmp_path / "costs.h5"
    with pytest.raises(InterruptedByTestError):
        measure(GPT, path, interrupt_at(0.99))
    rounds = kept(path)
    known = rounds.get("padded none layer")
    assert known is not None
    hours = StackRounds(2, known.memory, (np.full_like(known.times_ms[0], 1e7),) * 2)
    rounds.put("padded none layer", hours)
    measure(GPT, path, lambda _: None)
    table: ProfileTable = read_table(path)
    assert max(np.nanmax(layer.forward_ms) for layer in table.layers.values()) >= 1e6


def test_rounds_come_back_as_they_were_kept(tmp_path: Path) -> None:
    RoundsFile(tmp_path / "t.h5", "mine").put("full layer", FOUND)
    found = RoundsFile(tmp_path / "t.h5", "mine").get("full layer")
    assert found is not None
    assert (found.n_rounds, found.n_microbatches) == (3, 2)
    np.testing.assert_array_equal(found.memory, FOUND.memory)
    np.testing.assert_array_equal(found.times_ms, FOUND.times_ms)


def test_rounds_of_another_table_or_of_a_damaged_file_are_unknown(tmp_path: Path) -> None:
    rounds = RoundsFile(tmp_path / "t.h5", "mine")
    rounds.put("full layer", FOUND)
    assert RoundsFile(tmp_path / "t.h5", "another").get("full layer") is None
    rounds.path.write_bytes(rounds.path.read_bytes()[:1000])
    assert RoundsFile(tmp_path / "t.h5", "mine").get("full layer") is None
