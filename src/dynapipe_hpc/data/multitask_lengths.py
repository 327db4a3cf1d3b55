"""Lengths of samples of many tasks, drawn from a distribution like that of the paper's dataset."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]

LONGEST = 65_536
"""Most tokens of an input or a target."""
_FRACTION_BITS = 20
_WORDS = 13  # random words per sample: one for its kind, six each for input and target


class TaskKind(NamedTuple):
    """A kind of task, whose lengths are distributed log-normally.

    `share`: Number of its samples in 1,000 samples. `input_octaves`: Standard deviation of the
    base-2 logarithm of that number. `target_octaves`: Standard deviation of the base-2 logarithm of
    that number.
    """

    name: str
    share: int
    input_median: float
    input_octaves: float
    target_median: float
    target_octaves: float


TASK_KINDS = (
    TaskKind("language inference", 160, 46.6, 0.65, 3, 0.7),
    TaskKind("question answering", 340, 75, 0.95, 6, 1.3),
    TaskKind("dialogue", 219, 110, 1.0, 22, 0.9),
    TaskKind("reasoning", 154, 110, 0.75, 60, 0.8),
    TaskKind("reading comprehension", 100, 250, 0.85, 8, 1.3),
    TaskKind("news summarization", 13, 891, 0.62, 62, 0.6),
    TaskKind("long documents", 14, 620, 1.6, 40, 1.2),
)
"""Kinds of tasks of FLANv2 (zero-shot), calibrated to what is published of it.

Published are the mean numbers of input tokens of MNLI (51.59, here language inference) and of
CNN/DailyMail (977.73, here news summarization); that 13.2 % more tokens are used with a maximum of
8,192 tokens per sample than with 512; and that padding every sample to the longest of a mini-batch
leaves less than 20 % real tokens. The other numbers are chosen so that these follow.

Source:
    Jiang et al., "DynaPipe", EuroSys 2024, doi:10.1145/3627703.3629585, sections 1 and 2.
"""


class MultitaskLengths(NamedTuple):
    """Lengths of samples, arrays of shape (n_samples,)."""

    inputs: Tokens
    targets: Tokens
    task_ids: Tokens


def draw_lengths(n_samples: int, seed: int) -> MultitaskLengths:
    """Draws the lengths of samples; more samples begin with the same ones.

    The same arguments give the same lengths on every machine: only operations whose rounding IEEE
    754 defines are used, so neither the machine's logarithms and exponentials nor NumPy's
    distributions, which change between versions.

    `seed`: Seed, from 0 on.
    """
    entropy = np.random.SeedSequence([seed % 2**32, seed // 2**32])
    words = np.random.Philox(entropy).random_raw(_WORDS * n_samples).reshape(n_samples, _WORDS)
    columns = np.array([kind[1:] for kind in TASK_KINDS], np.float64).T
    ends = np.cumsum([kind.share for kind in TASK_KINDS])
    task_ids = np.searchsorted(ends, words[:, 0] % np.uint64(ends[-1]), side="right")
    _, inputs, input_octaves, targets, target_octaves = columns[:, task_ids]
    return MultitaskLengths(
        _lengths(inputs, input_octaves, words[:, 1:7]),
        _lengths(targets, target_octaves, words[:, 7:]),
        task_ids.astype(np.int64),
    )


def _lengths(medians: Numbers, octaves: Numbers, words: npt.NDArray[np.uint64]) -> Tokens:
    lengths = medians * _power_of_two(octaves * _about_normal(words))
    return np.clip(np.rint(lengths), 1, LONGEST).astype(np.int64)


def _about_normal(words: npt.NDArray[np.uint64]) -> Numbers:
    """Sums of the 12 halves of six words, read as numbers from 0 to 1, less 6: of variance 1."""
    low, high = words & np.uint64(2**32 - 1), words >> np.uint64(32)
    sums = (low + high).sum(axis=1)
    normal: Numbers = np.ldexp(sums.astype(np.float64), -32) - 6
    return normal


def _power_of_two(exponents: Numbers) -> Numbers:
    """2 ** exponents: bit by bit, the fraction's binary digits choose among roots of 2."""
    fixed = np.floor(np.ldexp(exponents, _FRACTION_BITS)).astype(np.int64)
    powers: Numbers = np.ldexp(1.0, fixed >> _FRACTION_BITS)
    root = np.float64(2)
    for bit in reversed(range(_FRACTION_BITS)):
        root = np.sqrt(root)
        powers = np.where(fixed >> bit & 1, powers * root, powers)
    return powers
