"""Documents of packed rows, and tokens in rows."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from dynapipe_hpc.data.microbatch import PackedRow
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.data.token_block import SampleTokens
from dynapipe_hpc.models.batch import IterationTokens, collate, collate_both_sides
from dynapipe_hpc.models.documents import Documents, LengthGroups, padded_lengths, segments_of

CPU = torch.device("cpu")
LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=40)


def documents_of(lengths: list[int], fill: int = 0) -> Documents:
    offsets = (0, *np.cumsum(lengths).tolist())
    microbatch = PackedRow(tuple(range(len(lengths))), offsets[-1] + fill, offsets)
    documents = segments_of(microbatch)
    assert isinstance(documents, Documents)
    return documents


def test_what_fills_a_row_is_a_document_of_its_own() -> None:
    documents = documents_of([3, 1, 2], fill=2)
    assert documents.offsets == (0, 3, 4, 6, 8)
    assert documents.cu_seqlens.tolist() == [0, 3, 4, 6, 8]
    assert documents.cu_seqlens.dtype == torch.int32  # as kernels want it
    assert documents.positions.tolist() == [0, 1, 2, 0, 0, 1, 0, 1]
    assert documents.longest == 3
    assert documents.to(CPU) is documents
    # What fills a row up by much is several documents.
    assert documents_of([3, 200], fill=128).offsets == (0, 3, 203, 331)
    assert documents_of([3, 200], fill=300).offsets == (0, 3, 203, 331, 459, 503)
    assert documents_of([200]).offsets == (0, 200)


@given(LENGTHS, st.integers(0, 400))
def test_every_token_is_at_its_position_in_a_row_of_its_own_document(
    lengths: list[int], fill: int
) -> None:
    documents = documents_of(lengths, fill)
    groups = documents.length_groups
    position = documents.positions.tolist()
    first = [place - at for place, at in enumerate(position)]  # where each token's document begins
    starts = np.concatenate([[0], np.cumsum([n * length for n, length, _ in groups.sizes])])
    for place, slot in enumerate(groups.places.tolist()):
        assert groups.tokens[slot] == place
        group = int(np.searchsorted(starts, slot, side="right")) - 1
        length = groups.sizes[group][1]
        assert (slot - starts[group]) % length == position[place]
    assert len(groups.tokens) == starts[-1]
    own = [first[source] for source in groups.tokens.tolist()]
    for (n_rows, length, _), start in zip(groups.sizes, starts.tolist(), strict=False):
        rows = np.array(own[start : start + n_rows * length]).reshape(n_rows, length)
        assert (rows == rows[:, :1]).all()


PAIRS = st.lists(st.tuples(st.integers(1, 150), st.integers(1, 150)), min_size=1, max_size=20)


@given(PAIRS, st.integers(0, 300), st.integers(0, 300))
def test_every_target_is_a_row_beside_that_of_its_own_input(
    lengths: list[tuple[int, int]], fill: int, target_fill: int
) -> None:
    inputs, targets = zip(*lengths, strict=True)
    ends = [(0, *np.cumsum(side).tolist()) for side in (inputs, targets)]
    sources = Documents.between(ends[0], sum(inputs) + fill)
    documents = Documents.between(ends[1], sum(targets) + target_fill)
    of_inputs = np.diff(sources.offsets)
    groups, seen = LengthGroups.from_offsets(documents.offsets, CPU, sources.offsets), []
    masks = groups.padding_masks(torch.float64)
    start = source_start = 0
    for (n_rows, length, source_length), mask in zip(groups.sizes, masks, strict=True):
        assert mask.shape == (n_rows, 1, 1, source_length)
        for row_mask in mask[:, 0, 0]:
            n_sources = int((row_mask == 0).sum())
            own = groups.tokens[start : start + length].tolist()
            read = groups.source_tokens[source_start : source_start + source_length].tolist()
            target = documents.offsets.index(own[0])
            source = target if target < len(of_inputs) else int(of_inputs.argmin())
            first, end = sources.offsets[source : source + 2]
            assert read[:n_sources] == list(range(first, end))
            assert set(read[n_sources:]) <= {end - 1}
            assert source_length == padded_lengths(np.array([end - first]))
            assert not row_mask[:n_sources].any()
            assert (row_mask[n_sources:] == -np.inf).all()
            seen.append(target)
            start, source_start = start + length, source_start + source_length
    assert sorted(seen) == list(range(len(documents.offsets) - 1))


@given(st.integers(1, 100_000))
def test_a_long_document_is_padded_by_an_eighth_at_most(length: int) -> None:
    (row,) = padded_lengths(np.array([length]))
    assert 0 <= row - length < max(16, length / 8)
    assert row % 16 == 0


START = 99


def counted(sample: Sample) -> SampleTokens:
    """Sample 1 has the input 10, 11 and the target 15."""
    numbers = np.arange(10, dtype=np.uint16) + np.uint16(10 * sample.sample_id)
    targets = numbers[5 : 5 + sample.target_tokens]
    return SampleTokens(numbers[: sample.input_tokens], targets, numbers[:0], START)


TOKENS = IterationTokens({1: Sample(1, 2, 1)}, {1: 0.5}, counted, START)


def test_a_packed_row_may_hold_a_sample_twice_as_profiles_do() -> None:
    batch = collate(PackedRow((1, 1), 8, (0, 3, 6)), TOKENS)
    assert batch.tokens is not None
    assert batch.tokens.tolist() == [[*[START, 10, 11] * 2, START, START]]
    pair = PackedRow((1, 1), 4, (0, 2, 4), target_tokens=2, target_offsets=(0, 1, 2))
    source = collate_both_sides(pair, TOKENS).source
    assert source is not None
    assert source.tokens is not None
    assert source.tokens.tolist() == [[10, 11, 10, 11]]
