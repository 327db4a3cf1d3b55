"""Boxes of indices that locate a piece of a flat, tensor-parallel weight in the unsplit one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class Box:
    """Rectangular block of a tensor.

    Attributes:
        offsets: First index of the block, per dimension.
        sizes: Shape of the block.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


def boxes_of(shape: Sequence[int], start: int, stop: int) -> Iterator[Box]:
    """Elements `start` to `stop` of a tensor in row-major order, as boxes in the same order.

    They are a part of a row, complete rows, a part of a row: at most 2 x dimensions - 1 boxes.
    """
    if len(shape) == 1:
        yield Box((start,), (stop - start,))
        return
    n = prod(shape[1:])
    while start < stop:
        row, column = divmod(start, n)
        n_rows = (stop - start) // n if column == 0 else 0
        if n_rows:
            yield Box((row, *(0 for _ in shape[1:])), (n_rows, *shape[1:]))
            start += n_rows * n
            continue
        end = min(stop, (row + 1) * n)
        for box in boxes_of(shape[1:], column, column + end - start):
            yield Box((row, *box.offsets), (1, *box.sizes))
        start = end


def overlap(boxes: Sequence[Box]) -> bool:
    """Whether any two boxes of a tensor (of one or more dimensions) have an index in common.

    It sweeps along the first dimension, in which blocks of a checkpoint are mostly disjoint.
    """
    reached: list[Box] = []
    for box in sorted(boxes, key=lambda box: box.offsets):
        reached = [r for r in reached if r.offsets[0] + r.sizes[0] > box.offsets[0]]
        if any(common(r, box) for r in reached):
            return True
        reached.append(box)
    return False


def common(one: Box, other: Box) -> Box | None:
    """The indices that two boxes of a tensor have in common; None if there are none."""
    starts = tuple(map(max, one.offsets, other.offsets))
    sizes = tuple(
        min(a + n, b + m) - start
        for a, n, b, m, start in zip(
            one.offsets, one.sizes, other.offsets, other.sizes, starts, strict=True
        )
    )
    return Box(starts, sizes) if all(size > 0 for size in sizes) else None
