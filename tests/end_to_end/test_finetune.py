import signal
import sys
import tomllib
from pathlib import Path

import pytest
from tests.jobs.command_line import BIN, call_all
from tests.jobs.real_job import real_job

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.report.run_folder import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CHEAP = ("--memory", "1GB", "--set", "training.epochs=1", "--set", "training.learning_rate=1e-3")
COMMAND = (str(BIN / "dynapipe-hpc"), "finetune", "model", "chats.jsonl", *CHEAP)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, chats and preference pairs, and a tuned model in `whole`."""
    folder = tmp_path_factory.mktemp("finetune")
    for name, *options in (
        ("chats", "--chat", "--model", str(folder / "model")),
        ("preferences", "--preferences"),
    ):
        output = str(folder / f"{name}.jsonl")
        assert main(["demo-corpus", output, "--samples", "150", *options]) == 0
    call_all(folder, 2, ("finetune", "model", "chats.jsonl", "-o", "whole", *CHEAP))
    return folder


def weights(model: Path) -> bytes:
    return (model / "model.safetensors").read_bytes()


def losses(run: Path) -> tuple[float, float]:
    first, *_, last = RunFolder.open(run).evaluations()
    return first.loss, last.loss


def test_it_leaves_a_tuned_model_and_all_that_made_it(folder: Path) -> None:
    whole = folder / "whole"
    names = {path.name for path in whole.iterdir()}
    assert names >= {"data.h5", "config.toml", "run", "model", "report.html"}
    assert {"config.json", "tokenizer.json", "tokenizer_config.json"} <= {
        path.name for path in (whole / "model").iterdir()
    }
    first, last = losses(whole / "run")
    assert last < 0.9 * first


def test_it_does_what_the_verbs_do(folder: Path) -> None:
    run = ("run", "whole/config.toml", "-o", "hand", "--set", "data.dataset=hand.h5")
    preprocess = ("preprocess", "chats.jsonl", "hand.h5", "--tokenizer", "model")
    told = call_all(folder, 2, preprocess, run, run)
    assert "iterations are done; to continue, raise training.epochs: the learning rate" in told
    assert main(["export", str(folder / "hand"), "-o", str(folder / "by_hand")]) == 0
    assert weights(folder / "by_hand") == weights(folder / "whole" / "model")


@pytest.mark.parametrize(
    ("line", "number"), [("attention kernels:", signal.SIGKILL), ("iteration 2:", signal.SIGTERM)]
)
def test_the_same_command_goes_on(folder: Path, line: str, number: signal.Signals) -> None:
    output = f"after_{line.strip(':').replace(' ', '_')}"
    with real_job(folder, 2, *COMMAND, "-o", output) as job:
        job.wait_for_line(line)
        job.send(0, number)
        assert job.wait(120).exit_code != 0
    told = call_all(folder, 2, ("finetune", "model", "chats.jsonl", "-o", output, *CHEAP))
    assert "loss on samples that were held out" in told
    assert weights(folder / output / "model") == weights(folder / "whole" / "model")


def test_adapters_are_beside_the_model_that_they_are_merged_into(folder: Path) -> None:
    options = ("--lora", "2", *CHEAP[:4], "--set", "training.learning_rate=1e-4")
    output = folder / "by LoRA"
    told = call_all(
        folder, 2, ("finetune", "model", "preferences.jsonl", "-o", "by LoRA", *options)
    )
    assert "next: dynapipe-hpc generate 'by LoRA/model' --chat --prompt 'TEXT'" in told
    first, last = losses(output / "run")
    assert last < first
    assert (output / "adapters" / "adapter_model.safetensors").exists()
    assert weights(output / "model") != weights(folder / "model")
    assert 'objective = "dpo"' in (output / "config.toml").read_text()


def test_on_gpus_costs_are_measured_first(folder: Path) -> None:
    output = folder / "measured"
    program = (sys.executable, "-m", "tests.jobs.measured_finetune")
    options = ("model", "chats.jsonl", "-o", "measured", "--set", "training.epochs=1")
    env = {"PYTHONPATH": str(Path(__file__).parents[2])}
    with real_job(folder, 2, *program, *options, env=env) as job:
        ended = job.wait(200)
    assert ended.exit_code == 0, ended.err
    cost = tomllib.loads((output / "config.toml").read_text())["planner"]["cost"]
    assert (cost["kind"], cost["path"]) == ("profiled", "measured/costs.h5")
    assert set(cost["recompute"]) == {"none", "selective", "full"}
    assert weights(output / "model")
