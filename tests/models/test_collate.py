import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.microbatch import DenseRows, PaddedRows
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.collate import NO_SAMPLE, IterationTokens, collate

START = 99


class CountingTokens:
    """Sample 3 has the input 30, 31, ... and the target 35, 36, ..."""

    def read(
        self, sample_id: int, input_tokens: int, target_tokens: int
    ) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint16]]:
        first = np.uint16(10 * sample_id)
        numbers = np.arange(10, dtype=np.uint16) + first
        return numbers[:input_tokens], numbers[5 : 5 + target_tokens]

    def first_token(self, sample_id: int) -> int:
        return sample_id


SAMPLES = {s.sample_id: s for s in (Sample(1, 2, 1), Sample(2, 0, 2), Sample(3, 1, 1))}
TOKENS = IterationTokens(SAMPLES, {1: 0.5, 2: 0.25, 3: 0.125}, CountingTokens(), START)


def test_a_padded_row_holds_one_sample_and_padding() -> None:
    batch = collate(PaddedRows((1, 2), 4), TOKENS)
    assert batch.tokens.tolist() == [[START, 10, 11, START], [START, 25, START, START]]
    assert batch.labels.tolist() == [[10, 11, 15, START], [25, 26, START, START]]
    assert batch.weights.tolist() == [[0, 0, 0.5, 0], [0.25, 0.25, 0, 0]]
    assert batch.sample_ids.tolist() == [[1, 1, 1, NO_SAMPLE], [2, 2, NO_SAMPLE, NO_SAMPLE]]


def test_a_dense_row_holds_samples_one_after_the_other() -> None:
    batch = collate(DenseRows(((1, 3, 2),), 8), TOKENS)
    assert batch.tokens.tolist() == [[START, 10, 11, START, 30, START, 25, START]]
    assert batch.labels.tolist() == [[10, 11, 15, 30, 35, 25, 26, START]]
    assert batch.weights.tolist() == [[0, 0, 0.5, 0, 0.125, 0.25, 0.25, 0]]
    assert batch.sample_ids.tolist() == [[1, 1, 1, 3, 3, 2, 2, NO_SAMPLE]]
