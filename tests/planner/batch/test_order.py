import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.planner.batch.order import halved, order_samples, orders

MANY = np.random.default_rng(0).integers(1, 2000, 64).tolist()


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=130))
@example(MANY)
def test_halves_and_quarters_of_an_order_have_about_as_many_tokens(lengths: list[int]) -> None:
    samples = order_samples([Sample(i, n - 1, 1) for i, n in enumerate(lengths)])
    ordered = halved(samples)
    assert sorted(s.sample_id for s in ordered) == list(range(len(lengths)))
    assert halved(samples) == ordered
    tokens = np.cumsum([0, *(sample.tokens for sample in ordered)])
    for n_parts in (2, 4):
        shares = tokens[-1] * np.arange(1, n_parts) / n_parts
        beside = np.abs(tokens[:, None] - shares).min(axis=0)
        assert (beside <= (20 if lengths is MANY else max(lengths))).all()


PAIRS = st.lists(st.tuples(st.integers(0, 99), st.integers(1, 99)), min_size=1, max_size=30)


@given(pairs=PAIRS)
def test_every_order_holds_each_sample_once_whatever_the_order_of_arrival(
    pairs: list[tuple[int, int]],
) -> None:
    samples = [Sample(i, *pair) for i, pair in enumerate(pairs)]
    found = orders(samples, is_encoder_decoder=True)
    assert len(found) == 2
    for ordered in found:
        assert sorted(sample.sample_id for sample in ordered) == list(range(len(samples)))
    assert orders(samples[::-1], is_encoder_decoder=True) == found


@given(pairs=PAIRS)
def test_pairs_go_through_bands_of_inputs_in_which_targets_fall_and_rise_in_turn(
    pairs: list[tuple[int, int]],
) -> None:
    samples = [Sample(i, *pair) for i, pair in enumerate(pairs)]
    longest = max(padded(inputs) for inputs, _ in pairs)
    for n_bands, found in zip((32, 16), orders(samples, is_encoder_decoder=True), strict=True):
        expected: list[int] = []
        for band in range(n_bands):
            shortest = longest - (longest + 1) * (band + 1) / n_bands
            held = [
                (padded(targets) * (1 if band % 2 else -1), -inputs, -targets, i)
                for i, (inputs, targets) in enumerate(pairs)
                if shortest < padded(inputs) <= shortest + (longest + 1) / n_bands
            ]
            expected += [i for *_, i in sorted(held)]
        assert [sample.sample_id for sample in found] == expected


def padded(tokens: int) -> int:
    """A row has a position at least."""
    return -(-max(tokens, 1) // 8) * 8
