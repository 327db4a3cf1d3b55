from pathlib import Path

import pytest
from tests.examples.tokenized import write_samples
from tests.jobs.tiny_experiment import tiny_experiment, with_keys

from dynapipe_hpc.architecture.families import shape_from_values
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.checks import check_profile, check_run
from dynapipe_hpc.experiment.experiment import Experiment


def files(dataset: Path, vocab_size: int) -> Experiment:
    model = {"vocab_size": vocab_size}
    return Experiment(with_keys(tiny_experiment(), data={"dataset": str(dataset)}, model=model))


def test_a_decoder_of_its_own_needs_a_start_token(tmp_path: Path) -> None:
    path = write_samples(tmp_path / "x.h5", [([1] * 20, [9], "long")] * 40, has_start=False)
    check_run(gpt := files(path, 40))
    t5_keys = {"family": "t5", "head_size": 8}
    model = shape_from_values({**gpt.config.model.model_dump(), **t5_keys})
    t5 = Experiment(gpt.config.model_copy(update={"model": model}))
    message = "has no start token, but the decoder of a t5 reads one .* --start TOKEN"
    with pytest.raises(InputError, match=message):
        check_profile(t5, 1)


def test_the_number_of_iterations_follows_from_epochs_and_tokens(tmp_path: Path) -> None:
    dataset = write_samples(tmp_path / "x.h5", [([1] * 20, [9], "long")] * 40)
    given = files(dataset, 40).config  # batches of 12 samples with 21 tokens

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
