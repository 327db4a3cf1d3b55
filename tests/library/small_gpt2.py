"""A small GPT-2 of transformers in float64, samples for it, and what a whole batch of them does."""

from typing import Any

import numpy as np
import torch
from tests.examples.foreign_models import LONGEST, N_IDS, small_gpt2

from dynapipe_hpc import FunctionCost
from hf_sampler import PlannedSampler

N_SAMPLES, PER_STEP = 30, 12
LENGTHS = np.random.default_rng(5).integers(2, LONGEST + 1, N_SAMPLES).tolist()
DATA = [
    {"input_ids": np.random.default_rng(i).integers(3, N_IDS, length).tolist()}
    for i, length in enumerate(LENGTHS)
]
COST = FunctionCost(lambda n, m: 1 + 0.01 * n * m + 1e-4 * n * m * m, lambda n, m: n * m)
Gradients = dict[str, torch.Tensor]


def model() -> Any:
    torch.manual_seed(3)
    made = small_gpt2().double()
    made.loss_function = mean_loss  # in place of one in float32
    return made


def mean_loss(logits: torch.Tensor, labels: torch.Tensor, **_: Any) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def sampler(**options: Any) -> PlannedSampler:
    return PlannedSampler(LENGTHS, COST, PER_STEP, limit=200, **options)


def gradients_of(trained: Any) -> Gradients:
    return {name: each.grad.clone() for name, each in trained.named_parameters()}


def whole_batch(indices: list[int]) -> tuple[float, Gradients]:
    """Mean loss of all tokens of samples, each alone in its row, and its gradients."""
    trained = model()
    losses = []
    for i in indices:
        ids = torch.tensor(DATA[i]["input_ids"])
        logits = trained(input_ids=ids[None]).logits[0, :-1]
        losses.append(torch.nn.functional.cross_entropy(logits, ids[1:], reduction="none"))
    loss = torch.cat(losses).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item(), gradients_of(trained)


def assert_same(
    found: Gradients, expected: Gradients, rtol: float = 1e-9, atol: float = 1e-13
) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=rtol, atol=atol)


def samples_of(step: list[Any]) -> list[int]:
    return [i for planned in step for i in planned.indices]


def two_steps(folder: str) -> dict[str, Any]:
    """Settings of a Trainer on a CPU whose updates leave the weights as they were."""
    return {
        "output_dir": folder,
        "num_train_epochs": 1,
        "max_grad_norm": 0,
        "learning_rate": 1e-12,
        "logging_steps": 1,
        "report_to": [],
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
