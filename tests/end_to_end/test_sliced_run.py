"""A run over MPI in which long conversations are slices, against the same run without slices."""

import json
from pathlib import Path

import pytest
from tests.jobs.command_line import Tables, call, call_all, columns, finish, write_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
N_RANKS = 4
LITTLE = ("--set", "cluster.device_memory_bytes=60_000_000")
UNSLICED = ("--set", 'planner.batch.slices="off"')
CONFIG: Tables = {
    "data": {"dataset": "chat.h5", "max_tokens": 2048, "tokens_per_batch": 4096},
    "model": {
        "family": "llama",
        "n_heads": 4,
        "n_kv_heads": 2,
        "vocab_size": 4096,
        "max_tokens": 2048,
        "qk_norm": True,
    },
    "cluster": {"n_stages": 2, "n_replicas": 2, "device_memory_bytes": 1_000_000_000},
    "planner": {
        "cost": {"kind": "analytic", "recompute": ["none", "full"]},
        "batch": {"rule": "dynamic", "layouts": ["packed"], "slices": 256},
        "schedule": {"split_backward": True},
    },
    "training": {"iterations": 6, "dtype": "float64"},
    "checkpoint": {"every": 3},
    "evaluation": {"dataset": "chat.h5", "every": 6},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with conversations, two of which are twenty times as long, and runs by one job."""
    path = tmp_path_factory.mktemp("sliced")
    call(path, None, "demo-corpus", "chat.jsonl", "--samples", "60", "--seed", "2", "--chat")
    chats = [json.loads(line) for line in (path / "chat.jsonl").read_text().splitlines()]
    for chat in chats[10:12]:
        chat["messages"] = 20 * chat["messages"]
    (path / "chat.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    tokenizer = ROOT / "configs" / "demo_finetune" / "tokenizer"
    call(path, None, "preprocess", "chat.jsonl", "chat.h5", "--tokenizer", str(tokenizer))
    write_config(path, CONFIG)
    runs: dict[str, tuple[str, ...]] = {"sliced": (), "whole": UNSLICED, "little": LITTLE}
    verbs = [("run", "config.toml", *settings, "-o", name) for name, settings in runs.items()]
    call_all(path, N_RANKS, *verbs)
    return path


def test_losses_are_those_without_slices_in_every_iteration(folder: Path) -> None:
    assert "packed tokens 0 to 256 of sample " in call(folder, None, "plan", "config.toml")
    runs = folder / "sliced", folder / "whole"
    both = zip(*(columns(run, "loss", "gradient_norm") for run in runs), strict=True)
    for found, expected in both:
        assert len(found) == CONFIG["training"]["iterations"]
        assert found == pytest.approx(expected, rel=1e-10)


def test_a_sample_that_fits_as_slices_only_trains_as_with_more_memory(folder: Path) -> None:
    refused = finish(folder, None, "plan", "config.toml", *LITTLE, *UNSLICED)
    assert refused.returncode == 2
    assert "sample 11 (1656 input + 3 target tokens) on its own needs" in refused.stderr
    remedy = 'let long samples run as slices (planner.batch: layouts = ["packed"], slices = "auto")'
    assert remedy in refused.stderr
    for losses_of in (lambda run: columns(run, "loss")[0], evaluated_losses):
        found, expected = (losses_of(folder / run) for run in ("little", "whole"))
        assert len(expected) >= 2
        assert found == pytest.approx(expected, rel=1e-10)


def evaluated_losses(run: Path) -> list[float]:
    lines = (run / "evaluations.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]
