"""Decoders of `transformers` trained by their own layers in real runs, and by a plain loop."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from tests.examples.any_decoders import (
    DECODERS,
    origin_of,
    random_decoder,
    saved_decoder,
    wide_decoder,
)
from tests.examples.measured_layers import linear_table_of
from tests.examples.tokenized import write_samples
from tests.jobs.command_line import call, call_all, columns
from tests.jobs.tuning_files import N_IDS, write_tuning_files
from tests.oracles.in_float64 import in_float64
from tests.oracles.plain_tuning import check_tuned_model

from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.cli.main import main
from dynapipe_hpc.planner.cost.table.profile_file import write_table
from dynapipe_hpc.report.run_folder import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ONE_REPLICA = ("--set", "cluster.n_replicas=1")
SPLIT = (*ONE_REPLICA, *("--set", "planner.schedule={split_backward=true, rules=['zb_h1']}"))
MEASURED = ("--set", "planner.cost={kind='profiled', path='qwen3_moe/measured.h5'}")
SPLIT_COSTS = {
    "qwen3_moe": MEASURED,
    "gemma3": ("--set", "planner.cost={kind='analytic'}"),
    "falcon": ("--set", "planner.cost={kind='analytic'}"),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder per type with the model as it was, and a run that trained it."""
    folder = tmp_path_factory.mktemp("trained")
    for name, kind in DECODERS.items():
        with in_float64(kind.module):
            saved_decoder(name, folder / name / "theirs")
        write_files(folder / name, f"{name}/")
    told = call_all(folder, 4, *(run_of(name, "run") for name in DECODERS))
    for name in DECODERS:
        assert f"{name}/run: begins with the weights of {name}/theirs (" in told
    return folder


def run_of(name: str, output: str, *options: str) -> list[str]:
    return ["run", f"{name}/config.toml", "-o", f"{name}/{output}", *options]


@pytest.fixture(scope="module")
def split(trained: Path) -> Path:
    """The same folders, some with a run of two stages whose backward passes are split."""
    size = ("--microbatch-tokens", "256")
    table = ("-o", "qwen3_moe/measured.h5")
    profile = ["profile", "qwen3_moe/config.toml", *size, *table, *SPLIT, *MEASURED]
    runs = [run_of(name, "split", *SPLIT, *cost) for name, cost in SPLIT_COSTS.items()]
    call_all(trained, 2, profile, *runs)
    return trained


def write_files(folder: Path, as_seen: str, **training: Any) -> None:
    """A dataset, a configuration with packed and padded rows, and a made-up cost table."""
    write_tuning_files(
        folder,
        as_seen,
        {
            "model": {"init_from": f"{as_seen}theirs", "family": "transformers"},
            "cluster": {"zero_stage": 1},
            "planner": {
                "cost": {"kind": "profiled", "path": f"{as_seen}costs.h5"},
                "batch": {"rule": "dynamic", "layouts": ["padded", "packed"]},
            },
            "training": training,
        },
    )
    write_costs(folder)


def write_costs(folder: Path, lora: Lora | None = None) -> None:
    shape = origin_of(folder / "theirs")[1].model_copy(update={"lora": lora})
    table = linear_table_of(shape, 8, {"dtype": "float64", "optimizer": "adamw"})
    write_table(table, folder / "costs.h5")


@pytest.mark.parametrize("name", DECODERS)
def test_training_gives_the_losses_and_the_model_of_a_plain_loop(
    name: str, trained: Path, tmp_path: Path
) -> None:
    folder, module = trained / name, DECODERS[name].module
    with in_float64(module):
        model = random_decoder(name)
    check_tuned_model(model, module, folder, tmp_path / "new")
    files = [
        set(load_file(at / "model.safetensors")) for at in (folder / "theirs", tmp_path / "new")
    ]
    assert files[0] == files[1]


@pytest.mark.parametrize("name", SPLIT_COSTS)
def test_split_passes_give_the_same_losses(
    name: str, split: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(split)
    assert main(["plan", f"{name}/config.toml", *SPLIT, *SPLIT_COSTS[name]]) == 0
    assert " W0" in capsys.readouterr().out
    (found,), (expected,) = (columns(split / name / run, "loss") for run in ("split", "run"))
    assert found == pytest.approx(expected, rel=1e-9)


def test_adapters_are_exported_for_peft_and_merged(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="needs peft: pip install '.[reference]'")
    with in_float64("phi3"):
        saved_decoder("phi3", tmp_path / "theirs")
    write_files(tmp_path, "")
    lora = ("--set", "model.lora.rank=3", "--set", 'model.lora.targets=["qkv_proj", "down_proj"]')
    held_out = ("--set", "evaluation.held_out=0.1", "--set", "evaluation.every=10")
    write_costs(tmp_path, Lora(rank=3, targets=("qkv_proj", "down_proj")))
    told = call(tmp_path, 2, "run", "config.toml", "-o", "run", *ONE_REPLICA, *lora, *held_out)
    assert "held out" in told or "evaluation" in told
    run, adapters, merged = (str(tmp_path / name) for name in ("run", "adapters", "merged"))
    assert main(["export", run, "-o", adapters, "--dtype", "float64"]) == 0
    assert main(["export", run, "-o", merged, "--base", str(tmp_path / "theirs")]) == 0
    kind = transformers.AutoModelForCausalLM
    with in_float64("phi3"), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of what peft calls in transformers
        base = kind.from_pretrained(tmp_path / "theirs")
        model = peft.PeftModel.from_pretrained(base, adapters).double().merge_and_unload()
        found = kind.from_pretrained(merged).state_dict()
        before = kind.from_pretrained(tmp_path / "theirs").state_dict()
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(found[name], weight, rtol=1e-6, atol=1e-6)  # base in float32
        is_adapted = name.endswith(("qkv_proj.weight", "down_proj.weight"))
        assert torch.equal(weight, before[name]) != is_adapted


SCHEDULED = (
    *((name, "adaptive", 0.05) for name in ("llama", "gemma2", "gemma3", "qwen3_moe")),
    # What waits is less than was kept before.
    *((name, "zb_h1", 0.1) for name in ("llama", "starcoder2", "mixtral")),
)
SLICED = ("phi3", "gemma3")
EFFORT = ("--set", "planner.search.effort=1")


@pytest.fixture(scope="module")
def estimated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder per type and rule, or per type with slices, with a run of two stages in each."""
    folder = tmp_path_factory.mktemp("estimated")
    runs = []
    for name, rule, _ in SCHEDULED:
        case = f"{name}_{rule}"
        wide_decoder(name, folder / case / "theirs")
        padded = {"layouts": ["padded"]}
        write_estimated_run(folder, case, padded, max_tokens=64, tokens_per_batch=512)
        splits = str(rule == "zb_h1").lower()
        schedule = f"planner.schedule={{rules=['{rule}'], split_backward={splits}}}"
        runs.append(run_of(case, "run", "--set", schedule))
    for name in SLICED:
        wide_decoder(name, folder / name / "theirs")
        sliced = {"layouts": ["packed"], "slices": 64}
        write_estimated_run(folder, name, sliced, max_tokens=512, tokens_per_batch=1024)
        stream = np.random.default_rng(8)
        samples = [
            (*(stream.integers(0, N_IDS, each).tolist() for each in (n, 20)), "task")
            for n in stream.integers(1, 490, 60)
        ]
        write_samples(folder / name / "corpus.h5", samples, N_IDS)
        runs.append(run_of(name, "run", *EFFORT))
    call_all(folder, 2, *runs)
    return folder


def write_estimated_run(folder: Path, case: str, batch: dict[str, Any], **data: int) -> None:
    """A dataset and a configuration of two stages with estimated costs, slow in computing."""
    rates = {"launch_ms": 1e-6, "flops_per_ms": 1e5}
    cost = {"kind": "analytic", "recompute": ["none", "full"], **rates}
    tables: dict[str, dict[str, Any]] = {
        "data": data,
        "model": {"family": "transformers"},
        "cluster": {"n_replicas": 1},
        "planner": {"cost": cost, "batch": {"rule": "dynamic", **batch}},
        "training": {"dtype": "float32", "iterations": 4},
    }
    write_tuning_files(folder / case, f"{case}/", tables)


@pytest.mark.parametrize(
    ("case", "margin"),
    [
        *((f"{name}_{rule}", margin) for name, rule, margin in SCHEDULED),
        *((n, 0.05) for n in SLICED),
    ],
)
def test_estimated_memory_is_what_a_run_takes(case: str, margin: float, estimated: Path) -> None:
    records = list(RunFolder.open(estimated / case / "run").records())
    assert len(records) == 4
    for record in records:
        assert record.predicted_peak_bytes == pytest.approx(record.measured_peak_bytes, rel=margin)


@pytest.mark.parametrize("name", SLICED)
def test_plans_of_decoders_have_slices(
    name: str, estimated: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(estimated)
    assert main(["plan", f"{name}/config.toml", *EFFORT]) == 0
    assert "packed tokens 0 to 64 of sample " in capsys.readouterr().out
