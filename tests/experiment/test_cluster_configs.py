"""Configurations of clusters, and fine-tunes: planned before anything is measured or read."""

import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from mpi4py import MPI
from tests.examples.small_models import shapes_of
from tests.examples.tokenized import write_samples

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.doctor.examine import Case, Level, check_config
from dynapipe_hpc.experiment.load import load_config
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.plan.codec import encode_plans
from dynapipe_hpc.planner.cost.config import AnalyticTable

CONFIGS = Path(__file__).parents[2] / "configs"
CLUSTERS = sorted((CONFIGS / "clusters").glob("*_?x?.toml"))
FINE_TUNES = sorted((CONFIGS / "experiments").glob("*_?x?.toml"))
# What torch sees of the memory of each, in bytes.
DEVICES = {
    "a100_40gb": 42.3e9,
    "a100_64gb": 68.1e9,
    "a100_80gb": 85.0e9,
    "gh200": 101.5e9,
    "h100": 85.0e9,
    "h200": 150.1e9,
    "mi250x": 68.7e9,
    "mi300a": 137.4e9,
}
GPUS_OF_NODES = dict.fromkeys(DEVICES, (4, 8)) | {
    "a100_64gb": (4,),
    "gh200": (4,),
    "mi250x": (8,),
    "mi300a": (4,),
}
# What the network carries per GPU, in bytes per ms.
NETWORKS = dict.fromkeys(DEVICES, 25e6) | {
    "a100_64gb": 12.5e6,
    "h100": 50e6,
    "h200": 50e6,
    "mi250x": 12.5e6,
}
BATCH_TOKENS = 32768
MODEL = CONFIGS / "models" / "gpt_6.7b.toml"
each_cluster = pytest.mark.parametrize("path", CLUSTERS, ids=lambda path: path.stem)
each_fine_tune = pytest.mark.parametrize("path", FINE_TUNES, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples of 16 to 2048 tokens, most of them short, enough for the largest batch."""
    return write_samples(tmp_path_factory.mktemp("data") / "train.h5", drawn_samples(1500))


def drawn_samples(n_samples: int) -> list[tuple[list[int], list[int], str]]:
    log_lengths = np.random.default_rng(1).uniform(np.log(16), np.log(2049), n_samples)
    lengths = np.exp(log_lengths).astype(int).tolist()
    return [([1] * (n // 2), [2] * (n - n // 2), "task") for n in lengths]


def estimated(path: Path, folder: Path) -> Path:
    """A fine-tune with the estimates of its cluster: the file without its cost table."""
    tables = tomllib.loads(path.read_text())
    del tables["planner"]["cost"]
    tables["extends"] = str(path.parent / tables["extends"])
    written = folder / path.name
    written.write_text(tomli_w.dumps(tables))
    return written


def experiment_on(path: Path, folder: Path) -> Path:
    """A fine-tune of GPT 6.7B on a cluster."""
    model = tomllib.loads(MODEL.read_text())["model"]
    shape = tomllib.loads((MODEL.parent / "gpt.toml").read_text())["model"] | model
    tables = {
        "extends": str(path),
        "data": {"dataset": "train.h5", "max_tokens": 2048, "tokens_per_batch": BATCH_TOKENS},
        "model": shape,
        "planner": {"batch": {"rule": "dynamic"}},
        "training": {"iterations": 2},
    }
    written = folder / path.name
    written.write_text(tomli_w.dumps(tables))
    return written


def problems(config: Path, dataset: Path, *overrides: str) -> list[str]:
    """Problems that the doctor finds, in a job of the right size, which can be planned."""
    settings = [f"data.dataset={dataset}", "planner.search.effort=0", *overrides]
    job = Job(MPI.COMM_SELF)
    job.size = load_config(config, settings).cluster.n_ranks
    case = Case.from_arguments(job, config, settings, None)
    findings = list(check_config(case))
    assert case.files is not None
    experiment = case.files.open()
    plans = encode_plans(experiment.planner.make_plans(0, experiment.sampler.iteration(0)))
    assert max(map(len, plans)) <= experiment.config.store.plan_bytes
    return [f"{f.subject}: {f.text}" for f in findings if f.level is not Level.FACT]


def test_all_sizes_of_all_gpus_are_there() -> None:
    found = {path.stem for path in CLUSTERS}
    assert found == {
        f"{gpu}_{nodes}x{n}" for gpu in DEVICES for nodes in (1, 4) for n in GPUS_OF_NODES[gpu]
    }
    assert FINE_TUNES


@each_cluster
def test_a_cluster_has_the_ranks_of_its_name_and_leaves_a_tenth_of_memory(
    path: Path, tmp_path: Path
) -> None:
    config = load_config(experiment_on(path, tmp_path))
    gpu, nodes, n_gpus = parts(path)
    assert (config.cluster.n_replicas, config.cluster.n_stages) == (nodes, n_gpus)
    assert 0.85 < config.cluster.device_memory_bytes / DEVICES[gpu] <= 0.9
    assert config.training.dtype == "bfloat16"


@each_cluster
def test_sums_over_replicas_travel_over_the_links_of_the_cluster(
    path: Path, tmp_path: Path
) -> None:
    config = load_config(experiment_on(path, tmp_path))
    gpu, n_nodes, n_gpus = parts(path)
    n_ranks, cost = (n_gpus if n_nodes == 1 else n_nodes), config.planner.cost
    assert isinstance(cost, AnalyticTable)
    # Each rank of a ring sends float32 gradients of bfloat16 weights twice, but for its own part.
    carried_bytes = 2 * 2 * (n_ranks - 1) / n_ranks * cost.reduction_bytes_per_ms
    rate = config.cluster.link.bytes_per_ms if n_nodes == 1 else NETWORKS[gpu]
    assert 0.7 < carried_bytes / rate < 1.02


def parts(path: Path) -> tuple[str, int, int]:
    found = re.fullmatch(r"(.*)_(\d)x(\d)", path.stem)
    assert found is not None
    return found[1], int(found[2]), int(found[3])


@each_cluster
def test_a_model_can_be_planned_for_every_cluster(
    path: Path, tmp_path: Path, dataset: Path
) -> None:
    config = experiment_on(path, tmp_path)
    n_stages, n_layers = parts(path)[2], load_config(config).model.n_layers
    # Placing layers takes longer than everything else, and fine-tunes show it.
    named = f"model.layers_per_stage={[n_layers // n_stages] * n_stages}"
    assert problems(config, dataset, named) == []


@each_fine_tune
def test_a_fine_tune_can_be_planned_from_estimates(
    path: Path, tmp_path: Path, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    smaller = f"data.tokens_per_batch={BATCH_TOKENS}"
    check_estimated_plan(estimated(path, tmp_path), dataset, smaller, capsys=capsys)


def check_estimated_plan(
    config: Path, dataset: Path, *settings: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert problems(config, dataset, *settings) == []
    settings = (f"data.dataset={dataset}", "planner.search.effort=0", *settings)
    assert main(["plan", str(config), *(w for s in settings for w in ("--set", s))]) == 0
    assert "estimated from peak rates" in capsys.readouterr().out


@each_fine_tune
def test_a_fine_tune_trains_a_model_of_the_paper_with_measured_costs(path: Path) -> None:
    config: ExperimentConfig = load_config(path)
    family, size, _ = path.stem.split("_", 2)
    assert config.model == load_config(CONFIGS / "models" / f"{family}_{size}.toml").model
    assert config.planner.cost.kind == "profiled"
    assert set(config.planner.cost.recompute) == {"none", "selective", "full"}
    names = f"configs/experiments/{path.name}", f"runs/{path.stem}"
    assert all(name in path.read_text() for name in names)


FINE_TUNE = CONFIGS / "experiments" / "llama_3.2_1b_chats.toml"
PUBLISHED = CONFIGS / "models" / "llama_3.2_1b.toml"
N_IDS = 128_256
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "rope_scaling": {
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": N_IDS,
}


@pytest.fixture
def chats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Conversations, in the folder from which the model is named."""
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "models" / "Llama-3.2-1B-Instruct"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(CONFIG))
    write_tensors(model / "model.safetensors")
    return write_samples(tmp_path / "chats.h5", drawn_samples(300), N_IDS, has_start=False)


def write_tensors(path: Path) -> None:
    """A file of bfloat16 tensors of the model's names and shapes, which takes no room on disk."""
    header, end = {}, 0
    for name, shape in shapes_of(CONFIG).items():
        if name == "lm_head.weight":  # which is tied
            continue
        start, end = end, end + 2 * shape.numel()
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": (start, end)}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(file.tell() + end)


def test_a_fine_tune_of_a_folder_can_be_planned_from_estimates(
    chats: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    smaller = ("data.tokens_per_batch=16384", "training.warmup_iterations=2")
    layers = "model.layers_per_stage=[4, 4, 4, 4]"
    check_estimated_plan(estimated(FINE_TUNE, tmp_path), chats, *smaller, layers, capsys=capsys)


@pytest.mark.usefixtures("chats")
def test_sizes_of_a_folder_are_those_of_the_published_model() -> None:
    published = load_config(PUBLISHED).model.model_dump(exclude_none=True)
    found = load_config(FINE_TUNE).model.model_dump()
    assert {key: found[key] for key in published} == published
