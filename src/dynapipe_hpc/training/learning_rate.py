"""Learning rate schedules: a linear warm-up, then a decay."""

import math
from collections.abc import Callable, Mapping

from pydantic import ValidationError

from dynapipe_hpc.training.config import Schedule, TrainingConfig

DECAYS: Mapping[Schedule, Callable[[float], float]] = {
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
    "linear": lambda progress: 1 - progress,
    "constant": lambda _: 1.0,
}
"""Shape of each schedule: from 1 to 0 while the decay progresses from 0 to 1."""


def learning_rate(step: int, config: TrainingConfig) -> float:
    """Learning rate of a step, counted from 0: a linear warm-up, a plateau if any, then a decay.

    It reaches `config.learning_rate` at the last step of the warm-up and, at the last step of the
    decay, `config.min_learning_rate_ratio` times that, where it stays. With "cosine" and "linear",
    the plateau is the steps that `config.decay_length` leaves between warm-up and decay.

    Source: The plateau: Hu et al., "MiniCPM", arXiv:2404.06395, section 4 (warmup-stable-decay).
    """
    if step < config.warmup_iterations:
        return config.learning_rate * (step + 1) / config.warmup_iterations
    end = config.decay_iterations or config.n_iterations
    length = config.decay_length or max(1, end - config.warmup_iterations)
    done = max(0, step + 1 - (end - length))
    lowest = config.min_learning_rate_ratio
    share = lowest + (1 - lowest) * DECAYS[config.schedule](min(1.0, done / length))
    return config.learning_rate * share


def describe_longer(config: TrainingConfig) -> str:
    """Message on the learning rate of a finished run if training.iterations is raised."""
    n = config.n_iterations
    last = learning_rate(n - 1, config)
    if config.decay_iterations or config.schedule == "constant":
        return f"the learning rate continues at {learning_rate(n, config):.3g}"
    text = (
        f"the learning rate, now {last:.3g}, then follows the longer decay as if it had from "
        "the start"
    )
    if not _keeps(config, n, step=n, rate=last):
        return text
    return f"{text}; with training.decay_iterations={n} it stays at {last:.3g}"


def _keeps(config: TrainingConfig, decay_iterations: int, *, step: int, rate: float) -> bool:
    values = config.model_dump() | {"decay_iterations": decay_iterations}
    try:
        return learning_rate(step, TrainingConfig.model_validate(values)) == rate
    except ValidationError:  # the warm-up or the decay is longer
        return False
