"""Samples of an experiment: of a mixture of datasets, those that are evaluated, and how many."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.examples.tokenized import write_samples
from tests.jobs.tiny_experiment import tiny_experiment, with_keys
from tests.oracles.mixed_batches import Mixed, mixed_batches

from dynapipe_hpc.architecture.families import shape_from_values
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.checks import check_profile, check_run
from dynapipe_hpc.experiment.config import EvaluationConfig, ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.run.resume import facts_of_run
from dynapipe_hpc.experiment.show_plan import show_plan

LENGTHS = {"short": [3, 4, 5, 2, 3, 4, 6, 3] * 5, "long": [20, 25, 31, 18, 40, 22] * 2}
"""Tokens of the samples of each dataset; those of 40 tokens are left out."""


def config_of(folder: Path, *mixed: dict[str, Any], **settings: Any) -> ExperimentConfig:
    """A tiny experiment on datasets of these lengths; each has the table given for it, if any."""
    tables = []
    for i, (name, lengths) in enumerate(LENGTHS.items()):
        path = folder / f"{name}.h5"
        if not path.exists():
            write_samples(path, [([1] * (n - 2), [2, 9], f"task {n % 2}") for n in lengths])
        tables.append({"dataset": str(path), **(mixed[i] if mixed else {})})
    config = tiny_experiment(**settings.pop("cluster", {})).model_dump()
    del config["data"]["dataset"]
    config["data"] |= {"mixture": tables, "long_samples": "drop", "tokens_per_batch": 64}
    config["data"] |= settings.pop("data", {})
    config["training"] |= {"iterations": 10} | settings
    return ExperimentConfig.model_validate(config)


def expected_batches(rates: tuple[float, float], n_batches: int) -> list[list[int]]:
    """Ids of samples, those of the first dataset before those of the second."""
    kept = [[i for i, n in enumerate(lengths) if n <= 32] for lengths in LENGTHS.values()]
    tokens = [
        [lengths[i] for i in ids] for lengths, ids in zip(LENGTHS.values(), kept, strict=True)
    ]
    mixed = [Mixed(each, rate) for each, rate in zip(tokens, rates, strict=True)]
    first = [0, len(LENGTHS["short"])]
    found = mixed_batches(mixed, 64, 0, n_batches)
    return [[first[d] + kept[d][i] for d, i in batch] for batch in found]


def ids(config: ExperimentConfig, n_batches: int) -> list[list[int]]:
    sampler = Experiment(config).sampler
    return [[s.sample_id for s in sampler.iteration(k)] for k in range(n_batches)]


def test_samples_are_drawn_from_all_datasets_by_weight(tmp_path: Path) -> None:
    config = config_of(tmp_path, {"weight": 3.0}, {"weight": 1.0})
    assert ids(config, 40) == expected_batches((0.75, 0.25), 40)


def test_samples_are_drawn_by_the_sizes_that_are_left_of_datasets(tmp_path: Path) -> None:
    config = config_of(tmp_path, data={"mixture_cap": 30})
    assert ids(config, 40) == expected_batches((0.75, 0.25), 40)


def test_tokens_and_tasks_of_a_sample_are_those_of_its_dataset(tmp_path: Path) -> None:
    files = Experiment(config_of(tmp_path))
    lengths = [*LENGTHS["short"], *LENGTHS["long"]]
    for sample in files.sampler.iteration(0):
        name = "short" if sample.sample_id < len(LENGTHS["short"]) else "long"
        task = files.dataset.header.task_names[sample.task_id]
        assert task == f"{name}/task {lengths[sample.sample_id] % 2}"
        sides = files.dataset.read(sample)[:2]
        assert [len(side) for side in sides] == [lengths[sample.sample_id] - 2, 2]


def test_what_is_mixed_is_told_with_its_epochs(tmp_path: Path) -> None:
    config = config_of(
        tmp_path, {"weight": 3.0}, {"weight": 1.0, "epochs": 2, "name": "big"}, iterations=16
    )
    experiment = Experiment(config).open()
    # Short ones have 30 / 8 tokens, the others 116 / 5.
    lines = experiment.data_lines
    n_samples = sum(len(experiment.sampler.iteration(k)) for k in range(16))
    assert n_samples > 4 * 20
    assert lines[:2] == [
        "in 16 iterations, short: 75.0 % of samples, 32.7 % of tokens; "
        f"{(n_samples - 20) / 40:.2f} epochs of 40 samples",
        "in 16 iterations, big: 25.0 % of samples, 67.3 % of tokens; "
        "2.00 of at most 2 epochs of 10 samples",
    ]
    assert lines[2].startswith("big: 2 of 12 samples are longer than data.max_tokens (32)")
    assert "\n".join(lines) in show_plan(experiment, 0)


def test_a_run_that_outlasts_all_datasets_is_refused(tmp_path: Path) -> None:
    limits = {"epochs": 1}, {"epochs": 1}
    n = len(expected_batches((0.8, 0.2), 5))  # 5 epochs would be more than 5 batches
    assert n == 5
    check_run(Experiment(config_of(tmp_path, *limits, iterations=5)))
    with pytest.raises(InputError, match=r"after \d iterations all datasets have reached their"):
        check_run(Experiment(config_of(tmp_path, *limits, iterations=50)))


def test_training_continues_with_the_same_mixture_only(tmp_path: Path) -> None:
    weights = {"weight": 3.0}, {"weight": 1.0}
    variants = [
        config_of(tmp_path),
        config_of(tmp_path, data={"mixture_cap": 7}),
        config_of(tmp_path, data={"mixture_temperature": 3}),
        config_of(tmp_path, *weights),
        config_of(tmp_path, *reversed(weights)),
        config_of(tmp_path, {"epochs": 3}, {}),
    ]
    facts = [facts_of_run(Experiment(config)) for config in variants]
    assert all(one != other for one, other in pairwise([*facts, facts[0]]))
    renamed = config_of(tmp_path, {"name": "x"}, {})
    assert facts_of_run(Experiment(renamed)) == facts[0]


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
    assert found.evaluation is not None
    assert [sample.tokens for sample in found.evaluation.samples] == [6] * 7
    assert Experiment(tiny_experiment()).evaluation is None


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
        check_run(files(trained, held_out=0.95))


def test_a_decoder_of_its_own_needs_a_start_token(tmp_path: Path) -> None:
    path = write_samples(tmp_path / "x.h5", [([1] * 20, [9], "long")] * 40, has_start=False)
    gpt = Experiment(with_keys(tiny_experiment(), data={"dataset": str(path)}))
    check_run(gpt)
    t5_keys = {"family": "t5", "head_size": 8}
    model = shape_from_values({**gpt.config.model.model_dump(), **t5_keys})
    t5 = Experiment(gpt.config.model_copy(update={"model": model}))
    message = "has no start token, but the decoder of a t5 reads one .* --start TOKEN"
    with pytest.raises(InputError, match=message):
        check_profile(t5, 1)


def test_the_number_of_iterations_follows_from_epochs_and_tokens(tmp_path: Path) -> None:
    data = {"dataset": str(write_samples(tmp_path / "x.h5", [([1] * 20, [9], "long")] * 40))}
    given = with_keys(tiny_experiment(), data=data)  # batches of 12 samples with 21 tokens

    def lasting(**length: float) -> Experiment:
        return Experiment(with_keys(given, training={"iterations": None, **length}))

    assert lasting(epochs=2.0).describe_iterations() == "6, as training.epochs = 2.0 takes"
    assert lasting(tokens=253).open().config.training.iterations == 2
    assert "training.iterations = 1" not in lasting(iterations=1).describe_iterations()
    late = lasting(epochs=2.0, warmup_iterations=7)
    with pytest.raises(
        InputError, match=r"epochs = 2.0 takes 6 iterations: warmup_iterations \(7\)"
    ):
        check_run(late)
