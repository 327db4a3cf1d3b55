"""Kernels refuse or survive whatever arrays they are given: Python must never crash."""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dynapipe_hpc import _kernels
from dynapipe_hpc.planner.cost.cost_model import Cost

Arguments = list[Any]

CELLS = np.array([0, 1, 2, -1], np.int32)
SPANS = np.array([[[0, 2], [2, 4]]])
ROWS = np.array([0, 0, 1], np.int32)
COSTS = np.ones((3, 2, len(Cost)))
ROOM = np.full(2, 10.0)
REDUCE = np.array([2.0, 0.0])
KINDS = np.array([1, 0, 1], np.int32)
LINK = _kernels.Link(0.5, 10.0, True)
ORDER = np.array([[0, 3, 1, 4], [0, 1, 3, 4]], np.int32)
TOKENS = np.array([24, 16, 8])


def of_windows(kernel: Callable[..., object]) -> Callable[..., object]:
    """A kernel that takes the parts of windows in their place."""

    def called(*arguments: Any) -> object:
        windows = _kernels.WindowCosts(_kernels.CostTable(arguments[0]), *arguments[1:4])
        return kernel(windows, *arguments[4:])

    return called


def of_table(kernel: Callable[..., object], place: int = 0) -> Callable[..., object]:
    """A kernel that takes costs, and kinds at the end if there are any, in place of their table."""

    def called(*arguments: Any) -> object:
        n_kinds = int(isinstance(arguments[-1], np.ndarray) and arguments[-1].dtype == np.int32)
        given, kinds = arguments[: len(arguments) - n_kinds], arguments[len(arguments) - n_kinds :]
        table = _kernels.CostTable(given[place], *kinds)
        return kernel(*given[:place], table, *given[place + 1 :])

    return called


def of_ones(*columns: Any) -> None:
    """A price at which everything costs 1."""
    columns[-1][...] = 1


def windows_priced(*arrays: Any, price: Callable[..., None] = of_ones) -> tuple[Any, ...]:
    """Windows of both layouts, in two modes."""
    names = ("inputs", "targets", "n_documents", "pairs", "begin", "room_bytes", "kind_of_stage")
    given: dict[str, Any] = {"kind_of_stage": None, **dict(zip(names, arrays, strict=False))}
    return _kernels.price_windows(
        **given,
        is_packed=[False, True],
        most_tokens=30.0,
        token_multiple=8,
        known=(4.0, 8.0, 16.0),
        n_modes=2,
        price=price,
    )


KERNELS: dict[str, tuple[Callable[..., object], Arguments]] = {
    "balance_work": (_kernels.balance_work, [np.arange(4.0), 2]),
    "cyclic_schedule": (of_table(_kernels.cyclic_schedule), [COSTS, ROOM]),
    "list_schedule": (of_table(_kernels.list_schedule), [COSTS, ROOM, LINK, True, None, REDUCE]),
    "find_plans": (
        of_windows(lambda table, *others: _kernels.find_plans([table], *others)),
        [COSTS, CELLS, SPANS, ROWS, ROOM, LINK, False, REDUCE, np.ones(1), 7_000, 0],
    ),
    "simulate": (of_table(_kernels.simulate, 1), [ORDER, COSTS[:2], ROOM, LINK]),
    "price_windows": (
        windows_priced,
        [TOKENS, TOKENS, np.ones(3, np.int64), TOKENS**2, np.array([0, 2, 3]), ROOM],
    ),
    "price_windows of kinds": (
        windows_priced,
        [TOKENS, 0 * TOKENS, np.ones(3, np.int64), TOKENS**2, np.arange(4), np.full(3, 9.0), KINDS],
    ),
    "costs of kinds": (_kernels.CostTable, [COSTS, KINDS]),
    "place_transfers": (
        _kernels.place_transfers,
        [ORDER, np.ones((2, 4)), np.arange(2, dtype=np.uint32)],
    ),
    "interpolate_costs": (
        _kernels.interpolate_costs,
        [
            np.array([1, 4]),
            np.array([8, 32]),
            np.array([0]),
            np.ones((2, 2, 1, 2, len(Cost))),
            np.full(2, 128.0),
            np.ones((2, 2)),
            *np.ones((3, 3)),
            np.empty((3, 2, len(Cost))),
        ],
    ),
    "estimate_costs": (
        _kernels.estimate_costs,
        [
            np.array([0, 1, 2], np.int32),
            np.full(3, np.inf),
            np.ones((3, 7, 14)),
            np.ones((3, 5)),
            (1.0, 1.0, 1.0, 1.0, 1.0, 2.0),
            np.ones((3, 2)),
            np.ones((2, 2)),
            *np.ones((4, 5)),
            np.empty((5, 2, len(Cost))),
        ],
    ),
    "add_costs": (_kernels.add_costs, [COSTS, COSTS]),
}
WRONG = (np.nan, np.inf, -np.inf, -1.0, 0.0, 1e300, -1e300, 5e-324)


@st.composite
def spoiled(draw: st.DrawFn, good: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Entries that make no sense, or another shape."""
    array = good.copy()
    if draw(st.booleans()):
        shape = [draw(st.integers(0, 4)) for _ in range(draw(st.integers(0, 4)))]
        return np.resize(array, shape) if array.size else np.zeros(shape, array.dtype)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, array.size - 1))
        if array.dtype.kind == "f":
            array.flat[place] = draw(st.sampled_from(WRONG))
        elif array.dtype.kind == "b":
            array.flat[place] = draw(st.booleans())
        else:
            limits = np.iinfo(array.dtype)
            array.flat[place] = draw(st.sampled_from([limits.min, limits.max, 0, 1, 7, 1000]))
    return array


def refusal_of(name: str, arguments: Arguments) -> str | None:
    """Message of a kernel that refuses its arguments."""
    kernel, _ = KERNELS[name]
    try:
        kernel(*copied(arguments))
    except (TypeError, ValueError) as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", KERNELS)
def test_what_they_are_spoiled_from_is_accepted(name: str) -> None:
    _, good = KERNELS[name]
    assert refusal_of(name, good) is None


def copied(arguments: Arguments) -> Arguments:
    return [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]


@pytest.mark.parametrize(
    ("latency_ms", "bytes_per_ms"), [(np.nan, 1.0), (-1.0, 1.0), (0.0, np.nan), (0.0, 0.0)]
)
def test_a_link_that_takes_no_time_that_is_a_number_is_refused(
    latency_ms: float, bytes_per_ms: float
) -> None:
    with pytest.raises(ValueError, match="latency_ms must be at least 0 and bytes_per_ms above"):
        _kernels.Link(latency_ms, bytes_per_ms, True)


def test_nobody_can_change_costs_of_windows_that_were_checked() -> None:
    arrays = copied([COSTS, CELLS, SPANS, ROWS])
    _kernels.WindowCosts(_kernels.CostTable(arrays[0]), *arrays[1:])
    for array in arrays:
        with pytest.raises(ValueError, match="read-only"):
            array[:] = 99


@pytest.mark.parametrize("wrong", [-1, 2**40])
def test_numbers_of_tokens_that_would_overflow_are_refused(wrong: int) -> None:
    kernel, arguments = KERNELS["interpolate_costs"]
    with pytest.raises(ValueError, match=rf"n_rows must hold 0.0+ to 2147483648.0+, got {wrong}"):
        kernel(*arguments[:6], np.full(3, float(wrong)), *arguments[7:])


def test_windows_may_be_none() -> None:
    _, arguments = KERNELS["price_windows"]
    _, cells, spans, *_ = windows_priced(*arguments[:5], np.zeros(2))
    assert np.unique(cells).tolist() == [-1]
    assert spans.shape == (4, 2, 2)


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=7),
    lengths=st.lists(st.sampled_from([8, 16, 24]), min_size=7, max_size=7),
    most_tokens=st.integers(8, 200),
)
def test_windows_of_bundles_of_any_sizes_are_their_own(
    sizes: list[int], lengths: list[int], most_tokens: int
) -> None:
    """Bundles share a row of the table only where all its windows are alike."""
    inputs = np.repeat(lengths[: len(sizes)], sizes)
    begin = np.array([0, *np.cumsum(sizes)])
    _, cells, spans, rows, n_rows, row_tokens, *_ = _kernels.price_windows(
        inputs,
        0 * inputs,
        np.ones_like(inputs),
        inputs**2,
        begin,
        is_packed=[False],
        most_tokens=float(most_tokens),
        token_multiple=8,
        known=(np.inf, 1.0, 1.0),
        room_bytes=np.full(1, 9e9),
        kind_of_stage=None,
        n_modes=1,
        price=of_ones,
    )
    for first, last in combinations(range(len(begin)), 2):
        held = inputs[begin[first] : begin[last]]
        place, end = spans[0, rows[first]] + [last - first - 1, 0]
        is_there = place < end and cells[place] >= 0
        assert is_there == (last == first + 1 or len(held) * held.max() <= most_tokens)
        if is_there:
            cell = cells[place]
            assert (n_rows[cell], row_tokens[cell]) == (len(held), held.max())


def test_arrays_of_a_result_outlive_it_and_those_that_a_price_keeps_the_call() -> None:
    _, arguments = KERNELS["price_windows"]
    kept: list[Any] = []

    def price(*columns: Any) -> None:
        kept.append(columns)
        of_ones(*columns)

    kept.append(windows_priced(*arguments, price=price)[:1])
    assert np.unique(np.concatenate([costs.ravel() for *_, costs in kept])).tolist() == [1.0]


def test_what_a_price_raises_is_raised() -> None:
    _, arguments = KERNELS["price_windows"]

    def price(*_columns: Any) -> None:
        raise LookupError("no such price")

    with pytest.raises(LookupError, match="no such price"):
        windows_priced(*arguments, price=price)


@pytest.mark.parametrize("name", KERNELS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_a_spoiled_array_is_refused_or_survived(name: str, data: st.DataObject) -> None:
    _, good = KERNELS[name]
    arrays = [i for i, argument in enumerate(good) if isinstance(argument, np.ndarray)]
    place = data.draw(st.sampled_from(arrays))
    spoiled_one = data.draw(spoiled(good[place]))
    assert refusal_of(name, [*good[:place], spoiled_one, *good[place + 1 :]]) != ""
    assert refusal_of(name, good) is None
