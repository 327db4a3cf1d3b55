"""Updates the weights of a stage."""

import math
from dataclasses import dataclass

import torch
from torch import nn

from dynapipe_hpc.training.collectives import Collectives
from dynapipe_hpc.training.config import TrainingConfig
from dynapipe_hpc.training.gradients import FlatGradients, norm_of


@dataclass(frozen=True, slots=True)
class Step:
    """What an update did.

    Attributes:
        gradient_norm: Of the whole model, before clipping.
        learning_rate: Of the update.
    """

    gradient_norm: float
    learning_rate: float


class Optimizer:
    """AdamW with clipping over the whole model, on the weights of one stage."""

    def __init__(self, module: nn.Module, config: TrainingConfig, collectives: Collectives) -> None:
        """Takes over the gradients of `module`, whose parameters have one dtype."""
        self.gradients = FlatGradients(module.parameters())
        self._config = config
        self._collectives = collectives
        self._adamw = torch.optim.AdamW(
            _groups(module, config.weight_decay), betas=config.betas, fused=True
        )
        self._n_steps = 0

    def reduce_gradients(self) -> None:
        """Adds up gradients over replicas."""
        self._collectives.sum_over_replicas(self.gradients.flat)

    def step(self) -> Step:
        """Clips, updates the weights, clears the gradients.

        Raises:
            DivergedError: A gradient is not a finite number.
        """
        square_sum = self._collectives.sum_over_stages(self.gradients.square_sum())
        norm = norm_of(square_sum, self._n_steps)
        self.gradients.clip(norm, self._config.clip_norm)
        rate = learning_rate(self._n_steps, self._config)
        for group in self._adamw.param_groups:
            group["lr"] = rate
        self._adamw.step()
        self.gradients.clear()
        self._n_steps += 1
        return Step(norm, rate)


def learning_rate(step: int, config: TrainingConfig) -> float:
    """The learning rate of a step, counted from 0: a linear rise, then half a cosine.

    It reaches `config.learning_rate` at the last step of the warm-up and
    `config.min_learning_rate_ratio` of that at the last step of all.
    """
    if step < config.warmup_iterations:
        return config.learning_rate * (step + 1) / config.warmup_iterations
    done = step + 1 - config.warmup_iterations
    progress = min(1.0, done / max(1, config.iterations - config.warmup_iterations))
    lowest = config.min_learning_rate_ratio
    share = lowest + (1 - lowest) * (1 + math.cos(math.pi * progress)) / 2
    return config.learning_rate * share


def _groups(module: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    parameters = list(module.parameters())
    matrices = [p for p in parameters if p.ndim >= 2]
    vectors = [p for p in parameters if p.ndim < 2]
    groups: list[dict[str, object]] = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
