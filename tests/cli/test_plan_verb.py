"""`dynapipe-hpc plan`: an iteration to look at, and batches of lengths for others to check."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.bad_input.good import PARAMETERS, PROFILES
from tests.examples.linear_cost import decoder_shapes
from tests.examples.stage_costs import parse_schedule
from tests.examples.tokenized import write_samples
from tests.jobs.shared_folder import shared_folder
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.experiment.config import any_placement
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import to_toml
from dynapipe_hpc.planner.cost.from_config import costs_of, load_table
from dynapipe_hpc.planner.cost.table.profile_file import write_table
from dynapipe_hpc.planner.schedule.simulate import iteration_ms, simulate

A100 = Path(__file__).parents[2] / "configs" / "experiments" / "gpt_6.7b_a100.toml"
EXPERIMENT = tiny_experiment(n_stages=2, n_replicas=2)
BATCHES = [[5, 32, 9, 17, 8, 30, 1], [20, 4]]


@pytest.fixture
def config(tmp_path: Path) -> str:
    """A configuration whose dataset does not exist."""
    path = tmp_path / "config.toml"
    path.write_text(to_toml(EXPERIMENT), encoding="utf-8")
    return str(path)


@pytest.fixture
def lengths(tmp_path: Path) -> str:
    path = tmp_path / "lengths.json"
    path.write_text(json.dumps({"name": "few", "batches": BATCHES}), encoding="utf-8")
    return str(path)


def planned(tmp_path: Path, config: str, lengths: str, *more: str) -> list[dict[str, Any]]:
    output = tmp_path / "plans.json"
    assert (
        main(["plan", config, "--lengths", lengths, "--json", str(output), "--force", *more]) == 0
    )
    batches: list[dict[str, Any]] = json.loads(output.read_text(encoding="utf-8"))["batches"]
    return batches


def test_a_sample_whose_row_would_be_longer_than_the_model_is_refused(
    tmp_path: Path, config: str, lengths: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = ["planner.batch={rule='dynamic', token_multiple=24}", "data.max_tokens=24"]
    more = [f"--set={each}" for each in (*sets, "model.max_tokens=32")]
    output = str(tmp_path / "refused.json")
    assert main(["plan", config, "--lengths", lengths, "--json", output, *more]) != 0
    assert "needs rows of up to 48, but model.max_tokens is 32" in capsys.readouterr().err


def test_the_plans_can_be_simulated_again(tmp_path: Path, config: str, lengths: str) -> None:
    source = Experiment(EXPERIMENT).costs
    cost, link = costs_of(source, EXPERIMENT.model, any_placement(EXPERIMENT), EXPERIMENT.cluster)
    for batch in planned(tmp_path, config, lengths):
        timelines = []
        for replica in batch["replicas"]:
            rows = np.array([len(m["samples"]) for m in replica["microbatches"]])
            tokens = np.array([m["input_tokens"] for m in replica["microbatches"]])
            schedule = parse_schedule("\n".join(replica["orders"]))
            costs = cost.stage_costs(decoder_shapes(rows, tokens))
            timeline = simulate(schedule, costs, link, cost.static_bytes)
            timelines.append(timeline)
            assert replica["makespan_ms"] == timeline.makespan_ms
            assert replica["peak_bytes"] == timeline.peak_bytes.tolist()
        assert batch["predicted_iteration_ms"] == iteration_ms(timelines, cost)
        assert 0 < batch["lower_bound_ms"] <= batch["predicted_iteration_ms"] * (1 + 1e-12)
        assert batch["planning_ms"] > 0


def test_packed_pairs_are_written_with_both_sides(tmp_path: Path) -> None:
    shared = shared_folder("lengths").parent
    config = A100.with_name("authors_t5_11b_32gpu.toml")
    path = shared / "lengths" / "t5_max2048_gbs65536.json"
    profile = str(shared / "profiles" / "a100_40gb_t5_11b.csv")
    more = ("--set=planner.search.effort=0", '--set=planner.batch.layouts=["padded", "packed"]')
    lengths = json.loads(path.read_text())
    batches = planned(tmp_path, str(config), str(path), "--profile", profile, *more)
    sides = zip(lengths["batches"], lengths["dec_batches"], strict=True)
    for batch, (inputs, targets) in zip(batches, sides, strict=True):
        (replica,) = batch["replicas"]
        found = replica["microbatches"]
        assert sorted(i for m in found for i in m["samples"]) == list(range(len(inputs)))
        packed = [m for m in found if m["layout"] == "packed"]
        assert packed
        for m in packed:
            tokens = sum(max(inputs[i], 1) for i in m["samples"])
            assert m["input_tokens"] == -(-tokens // 8) * 8
            assert m["target_tokens"] == -(-sum(targets[i] for i in m["samples"]) // 8) * 8
        assert max(replica["peak_bytes"]) <= 36_000_000_000
        assert 0 < batch["lower_bound_ms"] <= batch["predicted_iteration_ms"]


def test_costs_come_from_the_profile_that_is_named(
    tmp_path: Path, config: str, lengths: str
) -> None:
    (tmp_path / "a.csv").write_text(PROFILES)
    (tmp_path / "a_parameters.csv").write_text(PARAMETERS)
    table = str(tmp_path / "a.h5")
    write_table(load_table(tmp_path / "a.csv", EXPERIMENT.model), Path(table))
    by_csv = planned(tmp_path, config, lengths, "--profile", str(tmp_path / "a.csv"))
    by_table = planned(tmp_path, config, lengths, "--profile", table)
    by_config = planned(tmp_path, config, lengths)
    plans = [[batch["replicas"] for batch in p] for p in (by_csv, by_table, by_config)]
    assert plans[0] == plans[1] != plans[2]


def shown(tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    samples = [([1] * n, [2, 9], "sum") for n in (3, 25, 8, 14, 30, 6, 11)]
    dataset = write_samples(tmp_path / "some.h5", samples)
    assert main(["plan", config, f"--set=data.dataset={dataset}", *more]) == 0
    return capsys.readouterr().out


def test_an_iteration_is_shown_with_its_bound_and_what_every_rank_does(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(tmp_path, config, capsys)
    assert re.search(r"predicted [\d.]+ ms, lower bound [\d.]+ ms, gap \d+\.\d %", text)
    rank = r"rank 3 .*: [\d.]+ ms busy, [\d.]+ ms idle, [\d.]+ ms sending, peak [\d.]+ MB of"
    assert re.search(rank, text)
    assert "candidates" not in text


def test_packed_micro_batches_are_written_and_shown(
    tmp_path: Path, config: str, lengths: str, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = '--set=planner.batch.layouts=["packed"]'
    for batch, samples in zip(planned(tmp_path, config, lengths, packed), BATCHES, strict=True):
        found = [m for replica in batch["replicas"] for m in replica["microbatches"]]
        assert sorted(i for m in found for i in m["samples"]) == list(range(len(samples)))
        for m in found:
            tokens = sum(samples[i] for i in m["samples"])
            assert (m["layout"], m["input_tokens"]) == ("packed", -(-tokens // 8) * 8)
    capsys.readouterr()
    text = shown(tmp_path, config, capsys, packed)
    assert re.search(r"0:packed \d+ samples, [\d,]+ tokens", text)


def test_an_explanation_lists_the_candidates_and_marks_the_best(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(tmp_path, config, capsys, "--explain")
    line = r"(.+?) *\| +([\d.]+) ms \| +[\d.]+ MB \| (.*)$"
    ((way, _, rules),) = re.findall(r"^\* " + line, text, re.MULTILINE)
    assert way.startswith("local search, ")
    assert re.search(r"^[* ] local search, [\d,]+ moves, padded, recompute ", text, re.MULTILINE)
    assert re.fullmatch(r"(1f1b|cyclic|adaptive), (1f1b|cyclic|adaptive)", rules)
    assert "\noutliers: " in text
