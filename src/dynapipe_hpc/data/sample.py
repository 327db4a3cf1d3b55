"""One training sample, as far as planning is concerned."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample of the global batch: where its tokens are and how many are used.

    Attributes:
        sample_id: Index of the sample in the dataset.
        input_tokens: Number of input tokens used in training, after truncation, >= 0.
        target_tokens: Number of target tokens used in training, after truncation, >= 1.
        task_id: Index of the sample's task in the dataset.
    """

    sample_id: int
    input_tokens: int
    target_tokens: int
    task_id: int = 0

    @property
    def tokens(self) -> int:
        """Number of real tokens, input and target."""
        return self.input_tokens + self.target_tokens
