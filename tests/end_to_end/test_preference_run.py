"""Runs that train on preference pairs, on real ranks."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.examples.checkpoint_weights import different
from tests.examples.preference_training import answer_log_prob
from tests.examples.tokenized import TokenPair, write_pairs, write_samples
from tests.jobs.command_line import call, refusal
from tests.jobs.tiny_experiment import tiny_experiment
from tests.oracles.plain_run import read_checkpoint

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.data.token_block import SampleTokens
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.load import to_toml
from dynapipe_hpc.experiment.run.evaluations import ReferenceFile
from dynapipe_hpc.models.family import family_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

N_IDS = 40
STREAM = np.random.default_rng(8)
PAIRS = [
    TokenPair._make([*(STREAM.integers(0, N_IDS, n).tolist() for n in lengths), "ab"[i % 2]])
    for i, lengths in enumerate(STREAM.integers(1, 12, (60, 3)).tolist())
]
PACKED = {"rule": "dynamic", "layouts": ["packed"]}
FOUR = {"n_stages": 2, "n_replicas": 2}


def tables(dataset: str, training: dict[str, Any], **others: dict[str, Any]) -> dict[str, Any]:
    values = tiny_experiment(**FOUR).model_dump(exclude_none=True)
    values["data"] |= {"dataset": dataset, "max_tokens": 40, "tokens_per_batch": 160}
    values["planner"]["batch"] = PACKED
    values["training"] |= {"dtype": "float64", "learning_rate": 1e-2, **training}
    for name, table in others.items():
        values[name] = values.get(name, {}) | table
    return values


def write(folder: Path, name: str, values: dict[str, Any]) -> None:
    config = ExperimentConfig.model_validate(values)
    (folder / name).write_text(to_toml(config))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short run on samples, one that begins with it and trains on pairs."""
    path = tmp_path_factory.mktemp("job")
    samples = [(pair.prompt, pair.chosen, pair.task) for pair in PAIRS]
    write_samples(path / "samples.h5", samples, N_IDS)
    write_pairs(path / "pairs.h5", PAIRS, N_IDS)
    write(path, "first.toml", tables("samples.h5", {"iterations": 2}))
    values = tables(
        "pairs.h5",
        {"iterations": 6, "objective": "dpo", "preferences": {"beta": 0.2}},
        model={"init_from": "first"},
        evaluation={"held_out": 0.2, "every": 3, "tokens": 200},
        checkpoint={"every": 3},
    )
    write(path, "pairs.toml", values)
    call(path, 4, "run", "first.toml", "-o", "first")
    (path / "said.txt").write_text(call(path, 4, "run", "pairs.toml", "-o", "whole"))
    return path


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def reference_of(run: Path) -> Path:
    (found,) = run.glob("pairs.h5.*.reference")
    return found


class Tokens:
    """An answer behind its prompt."""

    def __init__(self, pair: TokenPair, *, rejected: bool) -> None:
        self.prompt = np.array(pair.prompt)
        self.answer = np.array(pair.rejected if rejected else pair.chosen)

    def __call__(self, sample: Sample) -> SampleTokens:
        return SampleTokens(self.prompt, self.answer, self.answer[:0], sample.sample_id)


def test_the_reference_is_the_model_before_training(folder: Path) -> None:
    config = tiny_experiment().model
    module = family_of(config)(config, range(4), first=True, last=True, dtype=torch.float64)
    weights = {
        name.removeprefix("weight/"): tensor
        for name, tensor in read_checkpoint(folder / "first", 2).items()
        if name.startswith("weight/")
    }
    module.load_state_dict(weights)
    data = reference_of(folder / "whole").read_bytes().partition(b"\n")[2]
    known = np.frombuffer(data, "<f8").reshape(-1, 2)
    for pair, log_probs in zip(PAIRS, known, strict=True):
        for side in (False, True):
            answer: Any = Tokens(pair, rejected=side)
            expected = answer_log_prob(module, answer, start_id=N_IDS - 1).item()
            assert log_probs[int(side)] == pytest.approx(expected, rel=1e-11)


def test_a_run_says_how_well_answers_are_told_apart(folder: Path) -> None:
    said = (folder / "said.txt").read_text()
    assert "pairs in" in said and "accuracy" in said
    first, *_, last = lines(folder / "whole/iterations.jsonl")
    assert first["loss"] == pytest.approx(np.log(2), rel=1e-12)
    assert first["preferences"][:3] == [0, 0, 0]
    assert last["preferences"][2] > 0
    evaluations = lines(folder / "whole/evaluations.jsonl")
    assert [each["n_done"] for each in evaluations] == [0, 3, 6]
    assert evaluations[0]["loss"] == pytest.approx(np.log(2), rel=1e-12)
    assert evaluations[-1]["preferences"]["kl"] > 0
    assert "accuracy of preferences, last" in call(folder, None, "report", "whole")


def test_an_interrupted_reference_is_completed_with_the_same_bits(folder: Path) -> None:
    whole = reference_of(folder / "whole")
    path = folder / "again" / whole.name
    header = json.loads(whole.read_bytes().partition(b"\n")[0])
    known = ReferenceFile(whole, header["fingerprint"], header["n_samples"]).read()
    known[20:] = np.nan
    path.parent.mkdir()
    ReferenceFile(path, header["fingerprint"], header["n_samples"]).write(known)
    said = call(folder, 4, "run", "pairs.toml", "-o", "again")
    assert path.read_bytes() == whole.read_bytes()
    assert " before" in said
    states = [read_checkpoint(folder / name, 6) for name in ("whole", "again")]
    assert not different(*states)


def test_adapters_are_compared_with_the_model_without_them(folder: Path) -> None:
    run = ("run", "pairs.toml", "--set", "model.lora.rank=2", "-o")
    assert "reference: 60 pairs in" in call(folder, 4, *run, "adapters")
    of_adapters, whole = (reference_of(folder / name) for name in ("adapters", "whole"))
    assert of_adapters.name == whole.name  # so that it may be copied
    assert of_adapters.read_bytes() == whole.read_bytes()
    first, *_, last = lines(folder / "adapters/iterations.jsonl")
    assert first["loss"] == pytest.approx(np.log(2), rel=1e-12)
    assert last["preferences"][2] > 0


def test_a_run_continues_with_the_reference_it_began_with(folder: Path) -> None:
    shutil.copytree(folder / "first", folder / "origin")
    origin = ("--set", "model.init_from=origin")
    half = ("run", "pairs.toml", "-o", "half", *origin)
    call(folder, 4, *half, "--set", "training.iterations=3", "--set", "training.decay_iterations=6")
    whole = ("--set", "training.decay_iterations=6")
    said = refusal(folder, 4, *half, *whole, "--set", "training.preferences.beta=0.3")
    assert "was written with training.preferences.beta = 0.2, but now it is 0.3" in said
    path = reference_of(folder / "half")
    kept = path.read_bytes()
    path.unlink()
    said = refusal(folder, 4, *half, *whole)
    assert "lacks log-probabilities by the model before training" in said
    path.write_bytes(kept)
    # The model that it began with has gone on, and its checkpoint is gone.
    call(folder, 4, "run", "first.toml", "-o", "origin", "--set", "training.iterations=4")
    shutil.rmtree(folder / "origin/checkpoints/000002")
    assert "reference:" not in call(folder, 4, *half, *whole)
    states = [read_checkpoint(folder / name, 6) for name in ("whole", "half")]
    assert not different(*states)


def test_pairs_to_evaluate_may_be_added_once_another_run_has_made_their_reference(
    folder: Path,
) -> None:
    write_pairs(folder / "added.h5", PAIRS[::-4], N_IDS)
    pairs = {"iterations": 2, "objective": "dpo", "decay_iterations": 4}
    others: dict[str, Any] = {"model": {"init_from": "first"}, "checkpoint": {"every": 1}}
    write(folder, "without.toml", tables("pairs.h5", pairs, **others))
    evaluation = {"dataset": "added.h5", "every": 2, "tokens": 1000}
    longer = pairs | {"iterations": 4}
    write(folder, "with.toml", tables("pairs.h5", longer, **others, evaluation=evaluation))
    call(folder, 4, "run", "without.toml", "-o", "added")
    advice = "start the same configuration in another run folder, which makes the file before its"
    assert advice in refusal(folder, 4, "run", "with.toml", "-o", "added")
    assert "reference: 15 pairs in" in call(folder, 4, "run", "with.toml", "-o", "maker")
    (made,) = (folder / "maker").glob("added.h5.*.reference")
    shutil.copy(made, folder / "added")
    assert "continues after 2 iterations" in call(folder, 4, "run", "with.toml", "-o", "added")
    evaluated = [lines(folder / name / "evaluations.jsonl")[-1] for name in ("added", "maker")]
    assert evaluated[0]["loss"] == pytest.approx(evaluated[1]["loss"], rel=1e-11)
