"""Figures of the study say what their simulations found."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reproduce import ablations, accuracy, layer_time, methods, packing, planning_time, variation
from reproduce.page import claims_text, write_page
from reproduce.studies import HERE, TABLES

from dynapipe_hpc.experiment.load import load_config, with_tables
from dynapipe_hpc.experiment.study.methods import methods_of
from dynapipe_hpc.report.planned_iteration import PlannedIteration
from dynapipe_hpc.report.simulation_folder import Planned

RATES = {  # real tokens per ms by method, at 512 tokens; all but packing keep it at 8,192
    methods.PACKING: 10,
    methods.FITTED: 12,
    methods.BALANCED: 20,
    methods.PUBLISHED: 15,
    methods.PADDED: 18,
    methods.ALL: 30,
}


def planned(method: str, rate: float, planning_ms: float = 1.0, reason: str = "") -> Planned:
    """An iteration of 900 real tokens among 1,000 computed, a third of each in a decoder."""
    times = (900 / rate, 900 / rate, 1.0, reason)
    return Planned(PlannedIteration(method, 0, 9, 600, 300, 700, 300, 4, *times), planning_ms)


def simulated(factor: float = 1, reason: str = "", division: str = "2x4x1") -> Any:
    for family in ("gpt", "t5"):
        for longest in packing.LONGEST:
            of_seeds = []
            for seed in (0.9, 1.0, 1.2):
                rates = {
                    m: r / (4 if m == methods.PACKING and longest == 8192 else 1)
                    for m, r in RATES.items()
                }
                of_seeds.append(
                    [planned(m, seed * factor * r, reason=reason) for m, r in rates.items()]
                )
            yield packing.Simulated(family, longest, division, of_seeds)


def test_the_fastest_division_that_runs_everything_counts() -> None:
    failed = simulated(9, "too large", "8x1x1")
    points = packing.best_divisions([*simulated(), *simulated(2, "", "1x4x2"), *failed])
    point = points["gpt", 2048, methods.ALL]
    assert point.division == "1x4x2"
    assert sorted(point.rates) == pytest.approx([54_000, 60_000, 72_000])


def test_claims_compare_medians() -> None:
    points = packing.best_divisions(simulated())
    throughput, efficiency = packing.figures(points)
    found = {claim.text: claim for claim in throughput.claims}
    faster = found[f"GPT 6.7B: {methods.PUBLISHED} is faster than packing"]
    assert (faster.found, faster.holds) == ("1.50x to 6.00x (at 8,192 tokens)", True)
    behind = found["GPT 6.7B: ours is faster than today's packed rule at every length"]
    assert (behind.found, behind.holds) == ("1.500x to 1.500x", True)
    [falls] = [c for c in throughput.claims if "T5 11B: throughput of packing falls" in c.text]
    assert falls.holds
    assert f"{methods.PACKING}: 75 % at 8,192; {methods.PUBLISHED}: 0 %" in falls.found
    assert [claim.holds for claim in efficiency.claims] == [True] * 3 + [False] * 3
    [row, *_] = efficiency.rows
    assert (row["real"], row["decoder_real"]) == (600 / 700, 1.0)


def test_planning_time_is_compared_as_averages() -> None:
    key = ("gpt", 512, methods.ALL)
    times = [planned(methods.ALL, 9, 1), planned(methods.ALL, 9, 5)]
    points = packing.best_divisions(simulated())
    every = planning_time.figure({**points, key: packing.Point("2x4x1", [1], times)}).rows
    [row] = [r for r in every if tuple(r.values())[:3] == ("GPT 6.7B", 512, methods.ALL)]
    assert row["ratio"] == pytest.approx(6 / 200)
    assert row["largest_ratio"] == pytest.approx(5 / 100)


def test_page_and_claims_are_written(tmp_path: Path) -> None:
    rules = [[planned(str(m["name"]), 9 + k) for k, m in enumerate(ablations.RULES)]]
    schedules = [[planned(str(m["name"]), 9 + k) for k, m in enumerate(ablations.SCHEDULES)]]
    ablated = ablations.Ablations(rules, dict.fromkeys(ablations.BATCHES, schedules))
    points = packing.best_divisions(simulated())
    figures = [
        *packing.figures(points),
        ablations.microbatching(ablated),
        ablations.schedules(ablated),
        planning_time.figure(points),
    ]
    drawn_ones = figures[:1] + figures[3:4]
    page = write_page(tmp_path, drawn_ones)
    for figure in drawn_ones:
        kinds = {path.suffix for path in tmp_path.glob(f"{figure.name}.*")}
        assert kinds == {".csv", ".svg", ".png"}
        assert f'src="{figure.name}.svg"' in page.read_text()
        assert figure.inputs.split(":")[0] in ("Simulated", "Measured")
    drawn = (tmp_path / "schedules.svg").read_bytes()
    figures[3].draw(tmp_path / "schedules.svg")
    assert (tmp_path / "schedules.svg").read_bytes() == drawn
    text = claims_text(figures)
    assert (
        "| C3 | adaptive against 1F1B at 16,384 tokens per batch | +10.1 % | +22.2 % | yes |"
        in (text)
    )
    assert [line.split(" ")[1] for line in text.splitlines() if line.startswith("| C")] == sorted(
        line.split(" ")[1] for line in text.splitlines() if line.startswith("| C")
    )


@pytest.mark.parametrize("family", ["gpt", "t5"])
def test_every_method_can_be_configured(family: str) -> None:
    config = load_config(HERE / f"{family}.toml")
    compared: list[Mapping[str, Any]] = [
        methods.packing(512),
        methods.fitted(),
        methods.balanced(),
        methods.published(),
        methods.padded(),
        methods.everything(),
    ]
    for replicas, stages, shards in packing.DIVISIONS[family]:
        layers = [packing.N_LAYERS[family] // stages] * stages
        tables: dict[str, Any] = {
            "cluster": {"n_replicas": replicas, "n_stages": stages, "n_shards": shards},
            "model": {"layers_per_stage": layers},
            "study": {"methods": compared},
        }
        found = methods_of(with_tables(config, "test", tables))
        assert [method.name for method in found] == list(packing.COMPARED)
        assert {m.config.model.layers_per_stage for m in found} == {tuple(layers)}


def test_a_layer_takes_its_measured_time_shared_by_tokens(tmp_path: Path) -> None:
    header = "tensor_parallel,recompute,layer,microbatch_size,input_tokens,forward_ms,backward_ms"
    kept = [f"1,none,encoder,1,{tokens},{ms},{2 * ms}" for tokens, ms in ((256, 1), (512, 4))]
    others = ["8,none,encoder,1,256,9,9", "1,full,encoder,1,256,9,9", "1,none,decoder,1,256,9,9"]
    (tmp_path / "profiles").mkdir()
    for name in TABLES.values():
        (tmp_path / "profiles" / name).write_text("\n".join([header, *kept, *others]))
    figure = layer_time.figure(tmp_path)
    of_gpt = [r for r in figure.rows if r["model"] == "GPT 6.7B"]
    found = [r["us_per_token"] for r in of_gpt if r["method"] == layer_time.BOTH]
    assert found == pytest.approx([1000 * 3 / 256, 1000 * 12 / 512])
    assert [claim.found for claim in figure.claims] == 2 * [
        "2.0x at 512 tokens, of what it takes at 256"
    ]
    figure.draw(tmp_path / "layer_time.svg")
    assert (tmp_path / "layer_time.svg").stat().st_size > 0


def test_equal_micro_batches_take_the_time_of_a_filled_pipeline_by_every_schedule() -> None:
    found = variation.makespans(np.ones(8), n_stages=3)
    assert found == dict.fromkeys(variation.METHODS, (8 + 3 - 1) * (1 + 2))


def test_a_long_micro_batch_stalls_passes_in_a_fixed_order_only() -> None:
    # On two stages, 1F1B lets the first stage wait for the second's long backward pass.
    found = variation.makespans(np.array([1.0, 1, 1, 5, 1, 1, 1, 1]), n_stages=2)
    busy = 12 * 3
    assert found[variation.IN_ORDER] > found[variation.ADAPTIVE] >= busy + 1
    assert found[variation.MOVED] <= found[variation.ADAPTIVE]


def test_errors_of_predictions_are_those_of_executed_runs(tmp_path: Path) -> None:
    machine = {"ranks": 2, "processor": "some", "commit": "0123456"}
    results = {
        "gpt": {"mean_error": 0.04, "mean_peak_error": 0.0},
        "t5, online": {"mean_error": 0.06, "mean_peak_error": 0.01},
    }
    path = tmp_path / "prediction.json"
    path.write_text(json.dumps({"machine": machine, "results": results}))
    claims = [*accuracy.claims(path)]
    found = [(claim.found, claim.holds) for claim in claims]
    assert claims[1].text.startswith("T5: predicted times, corrected by the run, and memory")
    assert found == [("times 4.0 %, memory 0.0 %", True), ("times 6.0 %, memory 1.0 %", False)]
