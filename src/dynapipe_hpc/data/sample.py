"""One training sample, as far as planning needs to know it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample of the global batch: where its tokens are and how many it uses.

    Attributes:
        sample_id: Index of the sample in the dataset.
        input_tokens: Tokens of the input used in training, after truncation, >= 0.
        target_tokens: Tokens of the target used in training, after truncation, >= 1.
        task_id: Index of the sample's task in the dataset.
    """

    sample_id: int
    input_tokens: int
    target_tokens: int
    task_id: int = 0

    @property
    def tokens(self) -> int:
        """Real tokens, input and target."""
        return self.input_tokens + self.target_tokens
