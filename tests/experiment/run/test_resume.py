from pathlib import Path

from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.experiment.load import to_toml
from dynapipe_hpc.experiment.run.resume import n_repeatable


def test_a_new_run_begins_nothing_again(tmp_path: Path) -> None:
    assert n_repeatable(tmp_path / "new", tiny_experiment()) == 0


def test_a_run_that_ended_before_its_first_checkpoints_is_begun_again(tmp_path: Path) -> None:
    config = tiny_experiment()
    checkpoint = config.checkpoint.model_copy(update={"every": 3})
    config = config.model_copy(update={"checkpoint": checkpoint})
    (tmp_path / "config.toml").write_text(to_toml(config))
    assert n_repeatable(tmp_path, config) == 6
