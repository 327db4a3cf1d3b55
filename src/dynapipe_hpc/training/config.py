"""How weights are trained."""

from typing import Literal, Self

from pydantic import Field, model_validator

from dynapipe_hpc.data.config_table import ConfigTable

LossWeighting = Literal["token", "sample", "task"]


class TrainingConfig(ConfigTable):
    """How weights are trained. The [training] table.

    Attributes:
        iterations: Steps of the optimizer.
        seed: Of the initial weights.
        dtype: Of weights, activations and gradients. With bfloat16 and float16, gradients are
            added up, and weights kept and updated, in float32; float16 scales its losses.
        learning_rate: The highest, reached at the end of the warm-up.
        warmup_iterations: Steps over which the learning rate rises from zero.
        decay_iterations: Step at which the learning rate has fallen to its lowest, where it stays;
            None for the last one. With a number of its own, `iterations` may be raised later
            without another learning rate for any step.
        min_learning_rate_ratio: Share of `learning_rate` left at the end of the decay.
        weight_decay: Decay of matrices; biases, relative ones among them, and norms have none.
        betas: Of AdamW's averages of gradients and of their squares.
        clip_norm: Largest norm of the gradient of the whole model, to which a larger one is scaled
            down; 0 for no limit.
        max_skipped_updates: Updates in a row that may be left out because a gradient is not a
            finite number. With 0 the first one ends the run; updates that float16 leaves out while
            it looks for its loss scale do not count.
        device: Where ranks compute: "cpu", "cuda", each rank on a GPU of its host, or "auto", on
            GPUs where there are any. Ranks that share one exchange tensors through the host.
        loss_weighting: What counts alike in the loss: target tokens, samples or tasks.
        threads: Processor threads of one rank's computations.
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
                    f"warmup_iterations ({self.warmup_iterations}) exceeds {name} ({last}); the "
                    f"learning rate would never reach learning_rate; raise {name} or lower the "
                    "warm-up"
                )
        return self

    @model_validator(mode="after")
    def _averages_forget(self) -> Self:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be >= 0 and < 1, got {list(self.betas)}")
        return self
