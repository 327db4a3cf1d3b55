import re
from collections import Counter
from pathlib import Path

import pytest
from tests.examples.tokenized import write_samples
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import to_toml
from dynapipe_hpc.experiment.study.predict import (
    Outcome,
    Variant,
    predict,
    real_shares,
    variants,
)
from dynapipe_hpc.job.ranks import Alone

LENGTHS = (3, 30, 7, 12, 20, 5, 9, 28, 2, 15, 11, 6)


@pytest.fixture
def config(tmp_path: Path) -> ExperimentConfig:
    """A model with 4 layers and 2 heads on 4 ranks."""
    write_samples(tmp_path / "samples.h5", [([1] * n, [9], "any") for n in LENGTHS])
    tables = tiny_experiment(n_stages=4).model_dump(exclude_none=True)
    tables["data"] |= {"dataset": str(tmp_path / "samples.h5"), "tokens_per_batch": 100}
    tables["model"]["layers_per_stage"] = [1, 1, 1, 1]
    tables["planner"]["batch"] = {"rule": "token_budget", "tokens_per_microbatch": 64}
    return ExperimentConfig.model_validate(tables)


def tune(files: Experiment, n_batches: int) -> list[Outcome]:
    return predict(Alone(), files, list(variants(files.config)), n_batches)


def written(config: ExperimentConfig, folder: Path) -> str:
    path = folder / "config.toml"
    path.write_text(to_toml(config), encoding="utf-8")
    return str(path)


def test_all_divisions_of_the_ranks_are_tried_with_all_rules(config: ExperimentConfig) -> None:
    found = Counter(
        (v.cluster.n_replicas, v.cluster.n_stages, v.cluster.n_shards, v.cluster.zero_stage)
        for v in variants(config)
    )
    without_replicas = [(1, 1, 4, 0), (1, 2, 2, 0), (1, 4, 1, 0)]
    with_replicas = [(2, 1, 2), (2, 2, 1), (4, 1, 1)]
    assert found.keys() == {*without_replicas, *((*n, z) for n in with_replicas for z in (0, 1))}
    assert set(found.values()) == {6}


def test_a_prediction_is_that_of_the_planner_of_the_variant(config: ExperimentConfig) -> None:
    found = [p for p in tune(Experiment(config), 2) if not p.reason]
    cluster = config.cluster.model_copy(update={"n_stages": 2, "n_replicas": 2})
    variant = Variant("token_budget", config.planner, cluster)
    (prediction,) = [p for p in found if p.variant == variant]
    experiment = Experiment(variant.applied_to(config)).open()
    batches = [experiment.sampler.iteration(k) for k in range(2)]
    plans = [experiment.planner.make_plans(k, batch) for k, batch in enumerate(batches)]
    total_ms = sum(each[0].prediction.iteration_ms for each in plans)
    assert prediction.iteration_ms == pytest.approx(total_ms / 2, rel=1e-12)
    tokens = sum(sample.tokens for batch in batches for sample in batch)
    assert prediction.tokens_per_s == pytest.approx(1e3 * tokens / total_ms, rel=1e-12)
    first_stages = [plan for each in plans for plan in each if plan.stage == 0]
    padded = sum(m.padded_tokens for plan in first_stages for m in plan.microbatches)
    assert real_shares(prediction.records) == (tokens / padded, None)


def test_what_cannot_be_divided_has_a_reason(config: ExperimentConfig) -> None:
    refused = [r for r in tune(Experiment(config), 1) if r.reason]
    too_many = [
        r for r in refused if r.reason.startswith("variant: cluster.n_shards (4) does not divide")
    ]
    assert {(r.variant.cluster.n_stages, r.variant.cluster.n_shards) for r in too_many} == {(1, 4)}
    assert refused == too_many


def test_the_table_is_printed_fastest_first(
    config: ExperimentConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", written(config, tmp_path), "--batches", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    speeds = [float(line.split()[0].replace(",", "")) for line in lines[2:] if line[0] == " "]
    assert len(speeds) == 6 * 8
    assert speeds == sorted(speeds, reverse=True)
    assert lines[2].split()[1] == "1.000"
    too_many = [line for line in lines if ": cannot run: " in line]
    for line in too_many:
        place = "cannot run: 1 of 9, the first on 1 x 1 x 4"
        assert re.match(rf"\w+: {place}.*: variant: cluster.n_shards \(4\) does ", line)
    assert len(too_many) == 6
    assert "note: with dense_packing, the samples of a row attend to each other" in lines
