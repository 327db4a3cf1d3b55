import pytest

from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.experiment.stopping import CheckpointTime
from dynapipe_hpc.training.checkpoint.config import CheckpointConfig


def test_a_run_that_could_not_stop_in_time_is_ended() -> None:
    time = CheckpointTime(CheckpointConfig(every=10, grace_s=60))
    time.check(iteration_s=20, checkpoint_s=39)
    with pytest.raises(RunError, match=r"grace_s is 60, but an iteration takes 20.0 s and a check"):
        time.check(iteration_s=20, checkpoint_s=41)


def test_checkpoints_that_training_waits_for_are_told_of_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    time = CheckpointTime(CheckpointConfig(every=2))
    time.check(iteration_s=10, checkpoint_s=19)
    assert capsys.readouterr().err == ""
    time.check(iteration_s=10, checkpoint_s=21)
    time.check(iteration_s=10, checkpoint_s=30)
    assert capsys.readouterr().err == (
        "dynapipe-hpc: a checkpoint takes 21.0 s, but checkpoint.every = 2 iterations only 20.0 s, "
        "so training waits; raise it\n"
    )
