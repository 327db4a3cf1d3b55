"""The [training] table: how weights are trained."""

from typing import Literal, Self

from pydantic import Field, model_validator

from dynapipe_hpc.data.config_table import ConfigTable

LossWeighting = Literal["token", "sample", "task"]


class TrainingConfig(ConfigTable):
    """The [training] table: how weights are trained.

    Attributes:
        iterations: Number of optimizer steps.
        seed: Seed of the initial weights.
        dtype: Type of weights, activations and gradients. With bfloat16 and float16, gradients are
            accumulated, and weights are kept and updated, in float32; float16 uses loss scaling.
            On GPUs, take bfloat16.
        learning_rate: Highest learning rate, reached at the end of the warm-up.
        warmup_iterations: Number of steps over which the learning rate rises from zero.
        decay_iterations: Step at which the learning rate reaches its minimum, where it stays; None
            for the last step. If it is set, `iterations` may be raised later without changing the
            learning rate of any step.
        min_learning_rate_ratio: Minimum learning rate as a share of `learning_rate`.
        weight_decay: Weight decay of matrices; biases, including relative ones, and norms have
            none.
        betas: Decay rates of AdamW's averages of gradients and of their squares.
        clip_norm: Largest norm of the complete model's gradient; a larger gradient is scaled down
            to it. 0 for no limit.
        max_skipped_updates: Number of consecutive updates that may be skipped because a gradient is
            not finite. With 0 the first one ends the run. Updates that float16 skips while it
            searches for its loss scale do not count.
        device: Device on which ranks compute: "cpu", "cuda" (each rank on a GPU of its host) or
            "auto" (GPUs if there are any). Ranks that share a GPU exchange tensors through the
            host.
        loss_weighting: Unit that has equal weight in the loss: target tokens, samples or tasks.
        threads: Number of processor threads of one rank's computations.
    """

    iterations: int = Field(ge=1, le=10**7)
    seed: int = Field(default=0, ge=0, le=2**63 - 1)
    dtype: Literal["float32", "float64", "bfloat16", "float16"] = "float32"
    learning_rate: float = Field(default=3e-4, gt=0)
    warmup_iterations: int = Field(default=0, ge=0)
    decay_iterations: int | None = Field(default=None, ge=1, le=10**7)
    min_learning_rate_ratio: float = Field(default=0.1, ge=0, le=1)
    weight_decay: float = Field(default=0.1, ge=0)
    betas: tuple[float, float] = (0.9, 0.95)
    clip_norm: float = Field(default=1.0, ge=0)
    max_skipped_updates: int = Field(default=0, ge=0)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    loss_weighting: LossWeighting = "token"
    threads: int = Field(default=1, ge=1, le=4096)

    @model_validator(mode="after")
    def _warms_up_before_the_end(self) -> Self:
        for name in ("iterations", "decay_iterations"):
            last = getattr(self, name)
            if last and self.warmup_iterations > last:
                raise ValueError(
                    f"warmup_iterations ({self.warmup_iterations}) exceeds {name} ({last}), so the "
                    f"learning rate would never reach learning_rate; raise {name} or lower "
                    "warmup_iterations"
                )
        return self

    @model_validator(mode="after")
    def _averages_forget(self) -> Self:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be >= 0 and < 1, got {list(self.betas)}")
        return self
