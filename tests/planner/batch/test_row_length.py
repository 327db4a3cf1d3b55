"""Rows hold what models compute on, and no more than up to the next multiple of 8."""

from hypothesis import given
from hypothesis import strategies as st
from tests.examples.training_case import RandomTokens

from dynapipe_hpc.data.microbatch import DenseRows
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.collate import IterationTokens, collate, collate_both_sides
from dynapipe_hpc.planner.batch.row_length import positions, row_lengths, tokens_of

SIDES = ("input", "target")
SAMPLES = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), min_size=1, max_size=6)


@given(SAMPLES, st.booleans())
def test_a_padded_row_has_fewer_than_8_positions_to_spare(
    lengths: list[tuple[int, int]], is_encoder_decoder: bool
) -> None:
    rows, target_rows = row_lengths([Sample(0, *both) for both in lengths], is_encoder_decoder)
    for row, target_row, (inputs, targets) in zip(rows, target_rows, lengths, strict=True):
        if is_encoder_decoder:
            assert 0 <= row - max(inputs, 1) < 8
            assert 0 <= target_row - targets < 8
        else:
            assert 0 <= row - (inputs + targets) < 8
            assert target_row == 0


@given(SAMPLES, st.booleans())
def test_the_last_position_of_a_row_predicts_the_last_token_of_its_samples(
    lengths: list[tuple[int, int]], is_encoder_decoder: bool
) -> None:
    samples = {i: Sample(i, *both) for i, both in enumerate(lengths)}
    inputs, targets = (tokens_of(list(samples.values()), f"{s}_tokens") for s in SIDES)
    row, target_row = (int(n.sum()) for n in positions(inputs, targets, is_encoder_decoder))
    dense = DenseRows((tuple(samples),), max(row, 1), target_tokens=target_row)
    tokens = IterationTokens(samples, dict.fromkeys(samples, 1.0), RandomTokens(), 30)
    if is_encoder_decoder:
        weights = collate_both_sides(dense, tokens).tokens.weights
    else:
        weights = collate(dense, tokens).weights
    assert weights.shape == (1, target_row if is_encoder_decoder else row)
    assert weights[0, -1] == 1
