"""The [training] table: how weights are trained."""

from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from dynapipe_hpc.data.config_table import ConfigTable

LossWeighting = Literal["token", "sample", "task"]
PreferenceObjective = Literal["dpo", "ipo"]
Objective = Literal["cross_entropy", PreferenceObjective]
Schedule = Literal["cosine", "linear", "constant"]
MAX_ITERATIONS = 10**7
LENGTHS = ("iterations", "epochs", "tokens")
"""Keys that say how long training takes, of which exactly one must be set."""
_Beta = Annotated[float, Field(ge=0, lt=1)]


class PreferenceLossConfig(NamedTuple):
    """Kind and settings of a loss of preference pairs; see `PreferencesConfig`."""

    objective: PreferenceObjective
    beta: float
    label_smoothing: float = 0.0
    sft_weight: float = 0.0
    per_token: bool = False


class PreferencesConfig(ConfigTable):
    """The [training.preferences] table: settings of losses of preference pairs.

    Attributes:
        beta: Strength of the tie to the reference, which is the model before training; a larger
            beta keeps the model closer to it.
        label_smoothing: Share of the pairs whose chosen and rejected answers are assumed to be
            swapped, only in "dpo" (conservative DPO).
        sft_weight: Weight of the chosen answer's mean cross entropy per token, which is added to
            the loss; 0 adds nothing.
        per_token: Whether the log-ratio of an answer is divided by its number of tokens; None means
            true in "ipo" and false in "dpo", as in `trl`.
    """

    beta: float = Field(default=0.1, gt=0, le=1e6)
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    sft_weight: float = Field(default=0.0, ge=0, le=1e6)
    per_token: bool | None = None


class TrainingConfig(ConfigTable):
    """The [training] table: how weights are trained.

    Attributes:
        iterations: Number of optimizer steps; None if `epochs` or `tokens` is given instead.
        epochs: Number of times that training visits the samples, from which the number of
            iterations follows.
        tokens: Number of tokens that training visits, from which the number of iterations
            follows.
        objective: Loss to minimize: "cross_entropy" for tokens; "dpo" or "ipo" (direct preference
            optimization) for preference pairs, relative to the model before training.
        preferences: Settings of the losses of preference pairs.
        seed: Seed of the initial weights and of dropout.
        init_optimizer: Whether a run that begins with the weights of a checkpoint
            (`model.init_from`) also takes over AdamW's moments from it. The learning rate
            schedule begins with its first step in any case.
        dtype: Type of weights, activations and gradients. With bfloat16 and float16, gradients are
            accumulated, and weights are kept and updated, in float32; float16 uses loss scaling.
            On GPUs, take bfloat16.
        learning_rate: Highest learning rate, reached at the end of the warm-up.
        warmup_iterations: Number of steps over which the learning rate rises linearly from zero;
            0 for no warm-up.
        schedule: Shape of the learning rate's decay after the warm-up: "cosine", "linear" or
            "constant" (no decay).
        decay_iterations: Step at which the learning rate reaches its minimum, where it stays; None
            means the last step. If it is set, `iterations` may be raised later without changing the
            learning rate of any step.
        decay_length: Number of steps of the decay; between warm-up and decay, the learning rate
            stays at its highest (warmup-stable-decay). None means all steps after the warm-up.
        min_learning_rate_ratio: Minimum learning rate as a share of `learning_rate`.
        weight_decay: Weight decay of the weights that `decay` names.
        decay: Weights that decay: "matrices" (no norms and no biases, not even relative biases) or
            "all".
        betas: Decay rates of AdamW's averages of gradients and of their squares.
        clip_norm: Largest norm of the complete model's gradient; a larger gradient is scaled down
            to it. 0 for no limit.
        max_skipped_updates: Number of consecutive updates that may be skipped because a gradient is
            not finite; one more ends the run. Updates that float16 skips while it searches for its
            loss scale do not count.
        device: Device on which ranks compute: "cpu", "cuda" (each rank on a GPU of its host) or
            "auto" (GPUs if there are any). Ranks that share a GPU exchange tensors through the
            host.
        loss_weighting: Unit that has equal weight in the loss: trained tokens, samples or tasks. A
            preference pair counts as one token.
        threads: Number of processor threads of one rank's computations.
    """

    iterations: int | None = Field(default=None, ge=1, le=MAX_ITERATIONS)
    epochs: float | None = Field(default=None, gt=0, le=10**6)
    tokens: int | None = Field(default=None, ge=1, le=2**53)
    objective: Objective = "cross_entropy"
    preferences: PreferencesConfig = PreferencesConfig()
    seed: int = Field(default=0, ge=0, le=2**63 - 1)
    init_optimizer: bool = False
    dtype: Literal["float32", "float64", "bfloat16", "float16"] = "float32"
    learning_rate: float = Field(default=3e-4, gt=0)
    warmup_iterations: int = Field(default=0, ge=0)
    schedule: Schedule = "cosine"
    decay_iterations: int | None = Field(default=None, ge=1, le=MAX_ITERATIONS)
    decay_length: int | None = Field(default=None, ge=1, le=MAX_ITERATIONS)
    min_learning_rate_ratio: float = Field(default=0.1, ge=0, le=1)
    weight_decay: float = Field(default=0.1, ge=0)
    decay: Literal["matrices", "all"] = "matrices"
    betas: tuple[_Beta, _Beta] = (0.9, 0.95)
    clip_norm: float = Field(default=1.0, ge=0)
    max_skipped_updates: int = Field(default=0, ge=0)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    loss_weighting: LossWeighting = "token"
    threads: int = Field(default=1, ge=1, le=4096)

    @property
    def preference_loss(self) -> PreferenceLossConfig | None:
        """Kind and settings of the loss of preference pairs; None if tokens are trained."""
        if self.objective == "cross_entropy":
            return None
        own = self.preferences
        per_token = self.objective == "ipo" if own.per_token is None else own.per_token
        return PreferenceLossConfig(
            self.objective, own.beta, own.label_smoothing, own.sft_weight, per_token
        )

    @property
    def n_iterations(self) -> int:
        """Number of optimizer steps of a run, known once it has seen its samples."""
        if self.iterations is None:
            raise ValueError("the number of iterations follows from the samples; see `of_length`")
        return self.iterations

    def of_length(self, n_iterations: int) -> Self:
        """The same table with a number of iterations in place of epochs or tokens.

        Raises:
            ValidationError: Warm-up or decay takes more iterations.
        """
        changes = dict.fromkeys(LENGTHS) | {"iterations": n_iterations}
        return type(self).model_validate({**self.model_dump(), **changes})

    @model_validator(mode="after")
    def _check_one_length(self) -> Self:
        given = [name for name in LENGTHS if getattr(self, name) is not None]
        if len(given) != 1:
            problem = f"{' and '.join(given)} are" if given else "none is"
            raise ValueError(
                f"exactly one of iterations, epochs and tokens is needed; {problem} given"
            )
        return self

    @model_validator(mode="after")
    def _check_warmup_precedes_end(self) -> Self:
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
    def _check_decay_follows_warmup(self) -> Self:
        if self.decay_length is None:
            return self
        if self.schedule == "constant":
            raise ValueError(
                f'decay_length ({self.decay_length}) has no effect on schedule = "constant", which '
                'does not decay; set schedule to "linear" or "cosine", or remove decay_length'
            )
        end = self.decay_iterations or self.iterations
        if end and self.warmup_iterations + self.decay_length > end:
            raise ValueError(
                f"warmup_iterations ({self.warmup_iterations}) and decay_length "
                f"({self.decay_length}) exceed the {end} steps in which the learning rate rises "
                "and decays; lower either, or raise iterations or decay_iterations"
            )
        return self

    @model_validator(mode="after")
    def _check_preferences_have_an_effect(self) -> Self:
        if self.objective == "cross_entropy" and self.preferences != PreferencesConfig():
            raise ValueError(
                'preferences are set, but objective is "cross_entropy", which compares no answers; '
                'set objective to "dpo" or "ipo", or remove them'
            )
        if self.objective == "ipo" and self.preferences.label_smoothing:
            raise ValueError(
                f"preferences.label_smoothing ({self.preferences.label_smoothing}) has no effect "
                'on objective = "ipo"; set objective to "dpo", or remove it'
            )
        return self
