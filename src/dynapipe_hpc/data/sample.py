"""One training sample, as far as planning is concerned."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample of the global batch: where its tokens are and how many are used.

    Attributes:
        sample_id: Index of the sample in the dataset.
        input_tokens: Number of input tokens used in training, after truncation, >= 0.
        target_tokens: Number of target tokens used in training, after truncation, >= 1; in a
            preference pair, tokens of the chosen answer.
        task_id: Index of the sample's task in the dataset.
        rejected_tokens: Number of used tokens of a preference pair's rejected answer, which shares
            the input with the chosen answer; 0 if the sample is not a pair.
    """

    sample_id: int
    input_tokens: int
    target_tokens: int
    task_id: int = 0
    rejected_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Number of real tokens: input, target and rejected answer."""
        return self.input_tokens + self.target_tokens + self.rejected_tokens

    def describe(self) -> str:
        """Numbers of its tokens, for messages."""
        rejected = f" + {self.rejected_tokens} rejected" if self.is_pair else ""
        return f"{self.input_tokens} input + {self.target_tokens} target{rejected} tokens"

    @property
    def answer_tokens(self) -> int:
        """Number of tokens after the input: of the target, and of a rejected answer."""
        return self.target_tokens + self.rejected_tokens

    @property
    def attention_pairs(self) -> int:
        """Number of pairs of its tokens, as attention counts them: squared lengths of documents.

        Both answers of a preference pair attend to the same input.
        """
        chosen = self.input_tokens + self.target_tokens
        return chosen**2 + self.rejected_tokens * (2 * self.input_tokens + self.rejected_tokens)

    @property
    def is_pair(self) -> bool:
        """Whether it is a preference pair."""
        return self.rejected_tokens > 0
