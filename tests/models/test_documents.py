import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dynapipe_hpc.data.microbatch import Layout, MicroBatch
from dynapipe_hpc.models.like_lengths import padded_lengths
from dynapipe_hpc.models.tokens.documents import Documents

CPU = torch.device("cpu")
LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=40)


def documents_of(lengths: list[int], fill: int = 0) -> Documents:
    offsets = (0, *np.cumsum(lengths).tolist())
    rows = (tuple(range(len(lengths))),)
    microbatch = MicroBatch(rows, offsets[-1] + fill, layout=Layout.PACKED, offsets=offsets)
    documents = Documents.of(microbatch)
    assert documents is not None
    return documents


def test_only_packed_rows_have_documents() -> None:
    assert Documents.of(MicroBatch(((1, 2),), 8)) is None
    assert Documents.of(MicroBatch(((1, 2),), 8, layout=Layout.DENSE)) is None


def test_what_fills_a_row_is_a_document_of_its_own() -> None:
    documents = documents_of([3, 1, 2], fill=2)
    assert documents.offsets == (0, 3, 4, 6, 8)
    assert documents.cu_seqlens.tolist() == [0, 3, 4, 6, 8]
    assert documents.cu_seqlens.dtype == torch.int32  # as kernels want it
    assert documents.positions.tolist() == [0, 1, 2, 0, 0, 1, 0, 1]
    assert documents.longest == 3
    assert documents.to(CPU) is documents


@given(LENGTHS, st.integers(0, 40))
def test_every_token_is_at_its_position_in_a_row_of_its_own_document(
    lengths: list[int], fill: int
) -> None:
    documents = documents_of(lengths, fill)
    groups = documents.like_lengths
    position = documents.positions.tolist()
    first = [place - at for place, at in enumerate(position)]  # where each token's document begins
    starts = np.concatenate([[0], np.cumsum([n * length for n, length in groups.sizes])])
    for place, slot in enumerate(groups.places.tolist()):
        assert groups.sources[slot] == place
        group = int(np.searchsorted(starts, slot, side="right")) - 1
        length = groups.sizes[group][1]
        assert (slot - starts[group]) % length == position[place]
    assert len(groups.sources) == starts[-1]
    own = [first[source] for source in groups.sources.tolist()]
    for (n_rows, length), start in zip(groups.sizes, starts.tolist(), strict=False):
        rows = np.array(own[start : start + n_rows * length]).reshape(n_rows, length)
        assert (rows == rows[:, :1]).all()


@given(st.integers(1, 100_000))
def test_a_long_document_is_padded_by_an_eighth_at_most(length: int) -> None:
    (row,) = padded_lengths(np.array([length]))
    assert 0 <= row - length < max(16, length / 8)
    assert row % 16 == 0


@pytest.mark.parametrize(("longest", "n_lengths"), [(128, 8), (2048, 40), (8192, 56)])
def test_documents_have_few_different_padded_lengths(longest: int, n_lengths: int) -> None:
    assert len(set(padded_lengths(np.arange(1, longest + 1)).tolist())) == n_lengths
