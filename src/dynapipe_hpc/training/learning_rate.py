"""How large steps are."""

import math

from dynapipe_hpc.training.config import TrainingConfig


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
