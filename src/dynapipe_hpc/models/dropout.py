"""Dropout by counted random numbers: masks do not depend on how a batch is planned.

A number of a token's activation is dropped or not by a hash of the seed, the iteration, the sample,
the position in it, the place in the model and the column. So a mask does not depend on
micro-batches, layouts, stages, shards, recomputation, a resumed run or the device.

Source: Srivastava et al., "Dropout", JMLR 2014; counted random numbers: Salmon et al., "Parallel
random numbers: as easy as 1, 2, 3", SC 2011; the mixing functions: Steele et al., "Fast splittable
pseudorandom number generators", OOPSLA 2014 (64 bits), and Wellons, "Prospecting for hash
functions", 2018 (32 bits).
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Function

from dynapipe_hpc.architecture.part import MASKED_AT_ONCE

POSITIVE = 2**31 - 1


def dropout_keys(
    iteration: int | None,
    rows: Sequence[Sequence[int]],
    held: Mapping[int, range],
    row_tokens: int,
) -> Tensor | None:
    """Key of every token of a micro-batch's rows: a hash of iteration, sample and position in it.

    Shape (rows, row_tokens), int64; 0 at padding. None outside training, without an iteration.
    """
    if iteration is None:
        return None
    owners, positions = np.full((2, len(rows), row_tokens), -1)
    for row, sample_ids in enumerate(rows):
        start = 0
        for sample_id in sample_ids:
            # A sample without input also takes a position, if its row has room.
            first, n = held[sample_id].start, len(held[sample_id])
            end = min(start + max(n, 1), row_tokens)
            owners[row, start:end] = sample_id
            positions[row, start:end] = np.arange(first, first + end - start)
            start += n
    of_samples = _hash_stepped(_hash_stepped(torch.tensor(iteration)) ^ torch.from_numpy(owners))
    keys = _hash_stepped(of_samples ^ torch.from_numpy(positions))
    return keys.masked_fill_(torch.from_numpy(owners < 0), 0)


class Dropout(nn.Module):
    """Dropout at a place of a model; without a rate, or without keys of tokens, it does nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.rate, self.place = 0.0, 0

    def forward(self, values: Tensor, keys: Tensor | None, first_column: int = 0) -> Tensor:
        """Values with some set to zero, and the rest divided by one minus the share of zeros.

        Backward makes the mask again, so nothing is kept for it.

        `keys`: Keys of the tokens, shape (...); None to drop nothing. `first_column`: Number of the
        first column, where shards divide columns.
        """
        if keys is None or not self.rate:
            return values
        dropped: Tensor = _Drop.apply(values, keys, self.place, self.rate, first_column)  # type: ignore[no-untyped-call]
        return dropped


def set_dropout(module: nn.Module, rate: float, seed: int) -> None:
    """Sets every dropout of a module, whose submodules are named as in the unsplit model."""
    for name, each in module.named_modules():
        if isinstance(each, Dropout):
            # The place in the model is known by its name.
            digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
            each.rate, each.place = rate, int.from_bytes(digest[:8], "little", signed=True)


class _Drop(Function):
    @staticmethod
    def forward(
        context: Any, values: Tensor, keys: Tensor, place: int, rate: float, first_column: int
    ) -> Tensor:
        context.mask = keys, place, rate, first_column
        return _masked(values, context.mask)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return _masked(gradients[0], context.mask), None, None, None, None


def _masked(values: Tensor, mask: tuple[Tensor, int, float, int]) -> Tensor:
    keys, place, rate, first_column = mask
    n_columns, limit = values.shape[-1], round(rate * 2**31)
    columns = torch.arange(n_columns, dtype=torch.int32, device=values.device)
    of_columns = _hash_32(columns + first_column)
    of_tokens = ((_hash_64(keys ^ place) >> 33) & POSITIVE).to(torch.int32).flatten()
    output = values.contiguous() / (1 - rate)
    n_at_once = max(1, MASKED_AT_ONCE // n_columns)
    rows = output.view(-1, n_columns)
    for start in range(0, len(rows), n_at_once):
        part = slice(start, start + n_at_once)
        numbers = _hash_32(of_tokens[part].unsqueeze(-1) ^ of_columns)
        rows[part].masked_fill_(numbers.bitwise_and_(POSITIVE) < limit, 0)
    return output


def _hash_stepped(numbers: Tensor) -> Tensor:
    return _hash_64(numbers + (0x9E3779B97F4A7C15 - 2**64))


def _hash_64(numbers: Tensor) -> Tensor:
    numbers = (numbers ^ ((numbers >> 30) & (2**34 - 1))) * (0xBF58476D1CE4E5B9 - 2**64)
    numbers = (numbers ^ ((numbers >> 27) & (2**37 - 1))) * (0x94D049BB133111EB - 2**64)
    return numbers ^ ((numbers >> 31) & (2**33 - 1))


def _hash_32(numbers: Tensor) -> Tensor:
    """Hash "lowbias32" of int32 numbers, in place."""
    numbers.bitwise_xor_((numbers >> 16).bitwise_and_(0xFFFF)).mul_(0x7FEB352D)
    numbers.bitwise_xor_((numbers >> 15).bitwise_and_(0x1FFFF)).mul_(0x846CA68B - 2**32)
    return numbers.bitwise_xor_((numbers >> 16).bitwise_and_(0xFFFF))
