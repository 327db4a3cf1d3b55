from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.examples.tokenized import write_samples
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.checks import RUN_CHECKS, check_run
from dynapipe_hpc.experiment.config import EvaluationConfig, ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment


def files(trained: Path, n_replicas: int = 1, **evaluation: Any) -> Experiment:
    tables = tiny_experiment(n_replicas=n_replicas).model_dump()
    tables["data"]["dataset"] = str(trained)
    tables["training"]["iterations"] = 100
    return Experiment(ExperimentConfig.model_validate({**tables, "evaluation": evaluation}))


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_samples(tmp_path / "x.h5", [([1] * 20, [9], "long")] * 400)


def test_held_out_samples_are_evaluated_and_not_trained_on(dataset: Path) -> None:
    found = files(dataset, held_out=0.2, tokens=10**6)
    assert found.evaluation is not None
    evaluated = {sample.sample_id for sample in found.evaluation.samples}
    epoch = found.sampler.iterations_of_epochs(1.0)
    trained = {s.sample_id for k in range(3 * epoch) for s in found.sampler.iteration(k)}
    assert not evaluated & trained
    assert len(evaluated | trained) > 390  # three epochs drop few samples at their ends
    assert all(sum(s.tokens for s in b) <= 256 for b in found.evaluation.batches)
    told = RUN_CHECKS["evaluation"](found, 1)
    assert told.startswith(f"{len(evaluated)} of {len(evaluated)} samples held out (share 0.2), ")


def test_all_evaluations_have_a_hundredth_of_the_tokens_of_training(dataset: Path) -> None:
    n_tokens = 100 * 256
    for every, n_evaluations in ((0, 2), (50, 3), (33, 5), (10, 11), (1000, 2)):
        found = EvaluationConfig(held_out=0.1, every=every)
        due = [n for n in range(101) if found.is_due(n, 100)]
        assert len(due) == n_evaluations
        assert found.most_tokens(100, 256) == n_tokens // 100 // n_evaluations
    evaluation = files(dataset, held_out=0.5).evaluation
    assert evaluation is not None
    assert sum(s.tokens for s in evaluation.samples) == 6 * 21  # of at most 128


def test_another_dataset_is_evaluated_in_whole(dataset: Path, tmp_path: Path) -> None:
    other = write_samples(tmp_path / "y.h5", [([1] * 5, [9], "short")] * 7)
    found = files(dataset, dataset=str(other), tokens=10**6)
    assert RUN_CHECKS["evaluation"](found, 1).startswith(f"7 of 7 samples of '{other}', 42 tokens")
    assert RUN_CHECKS["evaluation"](Experiment(tiny_experiment()), 1).startswith("none, as")


def test_a_table_without_samples_or_with_useless_patience_is_refused() -> None:
    with pytest.raises(
        ValidationError, match=r"exactly one of dataset and held_out .*; neither is"
    ):
        EvaluationConfig()
    with pytest.raises(ValidationError, match=r"patience \(3\) has no effect without every"):
        EvaluationConfig(held_out=0.1, patience=3)


def test_a_share_that_leaves_nothing_to_train_on_is_refused(tmp_path: Path) -> None:
    trained = write_samples(tmp_path / "x.h5", [([1] * 20, [9], "long")] * 2)
    with pytest.raises(InputError, match=r"held_out = 0.95: leaves none of 2 samples of '.*x.h5'"):
        check_run(files(trained, held_out=0.95), 1)
