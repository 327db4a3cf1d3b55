"""The [evaluation] table: on which samples, and how often, a run measures its loss."""

from typing import Self

from pydantic import Field, model_validator

from dynapipe_hpc.data.config_table import ConfigTable


class EvaluationConfig(ConfigTable):
    """The [evaluation] table: on which samples, and how often, a run measures its loss.

    A run evaluates before its first iteration, every so many iterations, and at its end.

    Attributes:
        dataset: Path of an HDF5 dataset whose samples are evaluated.
        held_out: Share of the training samples that is evaluated and never trained on; these are
            chosen by a hash of their ids, so that other seeds and settings hold out the same.
        every: Number of iterations between evaluations; 0 for none between the first and the last.
        tokens: Most tokens of the samples of one evaluation, which are the same each time; at least
            one sample per replica is evaluated anyway. None: all evaluations of a run together have
            one hundredth of its tokens, and take less than one hundredth of its time; a run that is
            continued with more iterations then evaluates more samples than before.
        patience: Number of evaluations in a row without a loss below the lowest so far, after
            which a run ends; the one before the first iteration does not count. 0 for no early end.
    """

    dataset: str | None = Field(default=None, min_length=1)
    held_out: float | None = Field(default=None, gt=0, lt=1)
    every: int = Field(default=0, ge=0)
    tokens: int | None = Field(default=None, ge=1, le=2**40)
    patience: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _check_dataset_or_held_out(self) -> Self:
        if (self.dataset is None) == (self.held_out is None):
            problem = "neither is" if self.dataset is None else "both are"
            raise ValueError(f"exactly one of dataset and held_out is needed; {problem} given")
        return self

    @model_validator(mode="after")
    def _check_patience_needs_every(self) -> Self:
        if self.patience and not self.every:
            raise ValueError(
                f"patience ({self.patience}) has no effect without every; set every to the number "
                "of iterations between evaluations"
            )
        return self

    def is_due(self, n_done: int, n_iterations: int) -> bool:
        """Whether a run of `n_iterations` evaluates when `n_done` are done."""
        return n_done in (0, n_iterations) or (self.every > 0 and n_done % self.every == 0)

    def most_tokens(self, n_iterations: int, tokens_per_batch: int) -> int:
        """Most tokens of one evaluation of a run with so many iterations of so many tokens."""
        if self.tokens is not None:
            return self.tokens
        n_between = (n_iterations - 1) // self.every if self.every else 0
        return n_iterations * tokens_per_batch // (100 * (2 + n_between))
