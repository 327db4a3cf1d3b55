"""Learning rate schedule: linear warm-up, cosine decay."""

import math

from dynapipe_hpc.training.config import TrainingConfig


def learning_rate(step: int, config: TrainingConfig) -> float:
    """Learning rate of a step, counted from 0: a linear warm-up, then a cosine decay.

    It reaches `config.learning_rate` at the last step of the warm-up and
    `config.min_learning_rate_ratio` of that at the last step of the decay, where it stays.
    """
    if step < config.warmup_iterations:
        return config.learning_rate * (step + 1) / config.warmup_iterations
    done = step + 1 - config.warmup_iterations
    end = config.decay_iterations or config.iterations
    progress = min(1.0, done / max(1, end - config.warmup_iterations))
    lowest = config.min_learning_rate_ratio
    share = lowest + (1 - lowest) * (1 + math.cos(math.pi * progress)) / 2
    return config.learning_rate * share


def describe_longer(config: TrainingConfig) -> str:
    """Message on the learning rate of a finished run if training.iterations is raised."""
    n, last = config.iterations, learning_rate(config.iterations - 1, config)
    if config.decay_iterations:
        return f"the learning rate continues at {learning_rate(n, config):.3g}"
    return (
        f"the learning rate, now {last:.3g}, then follows the longer decay as if it had from "
        f"the start; with training.decay_iterations={n} it stays at {last:.3g}"
    )


def describe_change(step: int, earlier: TrainingConfig, config: TrainingConfig) -> str:
    """Message on how a new configuration changes the learning rate of a step; empty if not."""
    before, now = learning_rate(step, earlier), learning_rate(step, config)
    if before == now:
        return ""
    by_decay = earlier.decay_iterations is None and earlier.iterations != config.iterations
    advice = f"; training.decay_iterations={earlier.iterations} keeps it" if by_decay else ""
    return f"the learning rate of iteration {step} changes from {before:.3g} to {now:.3g}{advice}"
