"""Adafactor against that of `transformers`, and on any layout of ranks."""

from typing import Any

import pytest
import torch
from tests.examples import training_case
from tests.examples.pipeline_training import assert_equal, three_steps
from tests.examples.training_case import SHAPE, T5_SHAPE, random_samples, unsplit_training
from tests.jobs.tiny_experiment import tiny_experiment
from torch import nn

from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.cost.model_state import state_factor
from dynapipe_hpc.training.collectives import SingleRankCollectives
from dynapipe_hpc.training.config import N_AVERAGES, TrainingConfig
from dynapipe_hpc.training.learning_rate import learning_rate
from dynapipe_hpc.training.optimizer import Optimizer

ADAPTED = T5_SHAPE.model_copy(update={"lora": Lora(rank=3)})
BATCHES = [random_samples(seed) for seed in (4, 5, 6)]


def config(**adafactor: Any) -> TrainingConfig:
    return TrainingConfig.model_validate(
        {
            "iterations": 10,
            "optimizer": "adafactor",
            "adafactor": adafactor,
            "learning_rate": 0.05,
            "warmup_iterations": 3,
            "weight_decay": 0.1,
            "clip_norm": 0.0,
            "dtype": "float64",
        }
    )


def small_module() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 4), nn.GELU(), nn.Linear(4, 3)).double()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"scale_parameter": True},
        {"relative_step": True, "scale_parameter": True},
        {"clip_threshold": 0.5, "decay_rate": -0.6},
    ],
    ids=["fine-tuning", "scaled", "relative", "clipped"],
)
def test_updates_are_those_of_transformers(settings: dict[str, Any]) -> None:
    optimization = pytest.importorskip("transformers.optimization")
    ours = config(**settings)
    module, reference = small_module(), small_module()
    optimizer = Optimizer(module, ours, SingleRankCollectives())
    named = list(reference.named_parameters())
    is_relative = ours.adafactor.relative_step
    adafactor = optimization.Adafactor(
        [
            {"params": [p for n, p in named if "bias" not in n], "weight_decay": 0.1},
            {"params": [p for n, p in named if "bias" in n], "weight_decay": 0.0},
        ],
        lr=None if is_relative else 1.0,
        relative_step=is_relative,
        scale_parameter=ours.adafactor.scale_parameter,
        clip_threshold=ours.adafactor.clip_threshold,
        decay_rate=ours.adafactor.decay_rate,
    )
    for step in range(6):
        inputs = torch.randn(5, 6, dtype=torch.float64, generator=torch.manual_seed(step))
        for model in (module, reference):
            (3.0 * model(inputs).square()).sum().backward()
        for group in adafactor.param_groups:
            group["lr"] = None if is_relative else learning_rate(step, ours)
        adafactor.step()
        adafactor.zero_grad()
        optimizer.step().read()
        for weight, expected in zip(module.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(weight, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("shape", "n_stages", "n_replicas", "n_shards", "sequence_parallel"),
    [
        (shape, *sizes)
        for shape in (SHAPE, T5_SHAPE)
        for sizes in ((2, 2, 1, False), (1, 1, 2, False), (2, 1, 2, True), (1, 1, 4, False))
    ]
    + [(ADAPTED, 2, 2, 1, False), (ADAPTED, 2, 1, 2, True)],
)
def test_every_layout_gives_the_unsplit_weights(
    shape: ModelShape,
    n_stages: int,
    n_replicas: int,
    n_shards: int,
    sequence_parallel: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(training_case, "CONFIG", config(scale_parameter=True))
    cluster = Cluster(
        n_stages=n_stages,
        n_replicas=n_replicas,
        n_shards=n_shards,
        sequence_parallel=sequence_parallel,
        device_memory_bytes=1_000_000,
    )
    # A softmax does not notice biases of keys, so that their gradients are rounding errors, which
    # Adafactor enlarges: at first to one, later by different factors in other layouts.
    batches = BATCHES if shape.family == "t5" else BATCHES[:1]
    found, expected = (
        three_steps(cluster, "1f1b", batches, shape=shape),
        unsplit_training(batches, shape),
    )
    for name in expected.tensors:
        if name.endswith("query_key_value.bias"):
            for outcome in (found, expected):
                outcome.tensors[name].chunk(3)[1].zero_()
    assert_equal(found, expected)


def test_a_weight_of_zeros_moves_by_the_least_scale() -> None:
    module = nn.Linear(1, 4).double()
    optimizer = Optimizer(module, config(scale_parameter=True), SingleRankCollectives())
    gradient = torch.tensor([3.0, -0.5, 2.0, -7.0], dtype=torch.float64)
    with torch.no_grad():
        module.bias.zero_()
        assert module.bias.grad is not None
        module.bias.grad.copy_(gradient)
    optimizer.step().read()
    # The first average is the square itself, so that the direction has numbers of one.
    expected = -learning_rate(0, config()) * 1e-3 * gradient.sign()
    torch.testing.assert_close(module.bias.data, expected, rtol=1e-9, atol=0)


def test_relative_steps_have_a_learning_rate_of_their_own() -> None:
    relative = config(relative_step=True)
    assert [learning_rate(step, relative) for step in (0, 9_999, 39_999)] == [0.01, 0.01, 0.005]


def test_the_state_is_small() -> None:
    module = nn.Linear(512, 256)
    optimizer = Optimizer(module, config(), SingleRankCollectives())
    weights = sum(p.nbytes for p in module.parameters())
    averages = (512 + 256 + 256) * 4
    assert 0 <= optimizer.kept_bytes - 2 * weights - averages <= 2 * 4 * 128  # what fills up shares
    assert state_factor(4, N_AVERAGES["adafactor"]) == 2
    assert state_factor(2, N_AVERAGES["adafactor"]) == 5


def test_replicas_cannot_divide_the_state() -> None:
    tables = tiny_experiment(n_replicas=2).model_dump()
    tables["training"]["optimizer"] = "adafactor"
    tables["cluster"]["zero_stage"] = 1
    with pytest.raises(
        ValueError, match=r"is too small to be divided among replicas.*zero_stage to 0"
    ):
        ExperimentConfig.model_validate(tables)
