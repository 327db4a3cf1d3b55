"""Rule by which long samples are cut into slices."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field

from dynapipe_hpc.data.microbatch import ExecutionMode, Layout, PackedRow, Recompute, Slice
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import activation_room_bytes
from dynapipe_hpc.planner.batch.row_length import ROW_MULTIPLE, padded
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray, Shapes

SliceSetting = Literal["off", "auto"] | Annotated[int, Field(ge=ROW_MULTIPLE)]
"""Cutting of samples into slices: off, as the rule decides, or a fixed number of tokens each."""

MIN_SLICE_TOKENS = 1024
"""Fewest tokens of a slice that the rule makes, on average, enough to keep kernels busy."""
MIN_SLICED_TOKENS = 2 * MIN_SLICE_TOKENS
"""Fewest tokens of a sample that the rule cuts."""
MAX_SLICES = 64
WALL_SHARE = 0.4
"""Time of the longest sample through all stages, as a share of a replica's work, from which a plan
of uncut samples may wait for it. Below, other samples fill the gap, and nothing is cut where memory
is ample."""
WORTHWHILE_SHARE = 0.05
"""Gap of a sample (see `SliceRule`), as a share of a replica's work, that is worth slices."""
SPARE_SHARE = 0.01
"""Gap of a slice, as a share of a replica's work, below which more slices are not worth it."""


class Cut(NamedTuple):
    """Slices of a sample."""

    sample: Sample
    slices: tuple[Slice, ...]

    def rows(self, mode: ExecutionMode, token_multiple: int) -> list[PackedRow]:
        """A row for every slice in a mode, filled up to a multiple."""
        n_recomputed = len(self.slices) - mode.n_kept
        return [
            PackedRow(
                (self.sample.sample_id,),
                padded(part.end - part.begin, token_multiple),
                (0, part.end - part.begin),
                mode.recompute if place < n_recomputed else Recompute.NONE,
                slice=part,
            )
            for place, part in enumerate(self.slices)
        ]


@dataclass(frozen=True, slots=True)
class SliceRule:
    """Rule by which long samples are cut into slices.

    A sample's trip through n stages and back takes n times its work on one stage. The excess over
    that work is a gap, in which stages wait unless other samples fill it. Cut into k parts of equal
    time, a sample has the gap of one part. There are two reasons to cut samples: the longest
    sample's gap is not filled, or memory does not hold one such sample per stage, so that uncut
    samples would be recomputed. For either reason, the rule cuts all samples whose gap is a large
    share of a replica's work; the number of parts is a power of two that makes that share small. It
    also cuts samples that do not fit uncut. If `setting` is a number of tokens, it instead cuts all
    longer samples into parts of that size.
    """

    setting: SliceSetting = "auto"
    token_multiple: int = ROW_MULTIPLE  # multiple that rows are filled up to

    def cuts(
        self, samples: Sequence[Sample], cost: CostModel, cluster: Cluster, n_misfits: int = 0
    ) -> list[list[Cut]]:
        """Ways to cut the longest samples; empty if no sample is worth cutting.

        `samples`: Samples, the longest first; none is cut if the first is a preference pair.
        `cost`: Cost model; none is cut if its model keeps no keys and values. `n_misfits`: Number
        of samples, the first ones, that cannot run uncut. Returns, for each sample that is cut (the
        first ones), a cut into fewer slices and one into more, or one cut if `setting` is a number.
        """
        cannot_be_cut = samples[0].is_pair or not cost.slice_memory.kept.any()
        if self.setting == "off" or cannot_be_cut:
            return []
        if isinstance(self.setting, int):
            longer = takewhile(lambda sample: sample.tokens > self._each, samples)
            return [[_cut_at(sample, range(0, sample.tokens, self._each))] for sample in longer]
        return [*self._worthwhile(samples, cost, cluster, n_misfits)]

    @property
    def _each(self) -> int:
        assert isinstance(self.setting, int)  # noqa: S101 - types
        return padded(self.setting, self.token_multiple)

    def _worthwhile(
        self, samples: Sequence[Sample], cost: CostModel, cluster: Cluster, n_misfits: int
    ) -> Iterator[list[Cut]]:
        tokens = np.array([sample.tokens for sample in samples], np.float64)
        times = _Times.from_cost(cost, samples[0].tokens)
        work_ms = times.of_sample(tokens)
        shares = work_ms / (work_ms.sum() / cluster.n_replicas)
        others_fill_gaps = cluster.n_stages * shares[0] < WALL_SHARE
        if (
            not n_misfits
            and others_fill_gaps
            and _memory_holds_one_per_stage(samples[0], cost, cluster)
        ):
            return
        trips = (cluster.n_stages - 1) * shares
        for place, (sample, trip) in enumerate(zip(samples, trips.tolist(), strict=True)):
            is_misfit = place < n_misfits
            most = min(sample.tokens // MIN_SLICE_TOKENS, MAX_SLICES)
            wanted = most if is_misfit else min(most, trip / SPARE_SHARE)
            if (trip < WORTHWHILE_SHARE and not is_misfit) or wanted < 2:
                return
            more = 2 ** int(np.log2(wanted))
            cuts = [
                _cut_at(sample, times.equal_parts(sample.tokens, n, self.token_multiple))
                for n in sorted({max(2, more // 2), more})
            ]
            if min(len(cut.slices) for cut in cuts) < 2:  # rows are longer than parts
                return
            yield cuts


class _Times(NamedTuple):
    """Time of both passes on the slowest stage, in packed rows with the most recomputation."""

    per_token: float
    per_pair: float

    @classmethod
    def from_cost(cls, cost: CostModel, longest_tokens: int) -> "_Times":
        """Times from the longest known row and two rows of half its length.

        Both have the same number of tokens, but the longer row has twice the pairs of tokens.
        """
        length = float(max(cost.known_rows.longest_tokens, longest_tokens))
        packed = cost.of_layout(Layout.PACKED)
        while length > ROW_MULTIPLE:
            rows = Shapes.padded(np.array([1, 2]), np.array([length, length / 2]), np.zeros(2))
            rows_ms = packed.stage_costs(rows, cost.recompute_modes[-1]).work_ms.max(axis=1)
            if np.isfinite(rows_ms).all():
                one_ms, two_ms = rows_ms.tolist()
                per_pair = max(one_ms - two_ms, 0.0) / (length**2 / 2)
                return cls(max(one_ms / length - per_pair * length, 0.0), per_pair)
            length /= 2
        return cls(1.0, 0.0)

    def of_sample(self, tokens: FloatArray) -> FloatArray:
        """Times of samples with these numbers of tokens, in the same shape."""
        return self.per_token * tokens + self.per_pair * tokens**2

    def equal_parts(self, n_tokens: int, n_parts: int, multiple: int) -> list[int]:
        """Beginnings of parts that take equally long, rounded down to multiples of `multiple`."""
        shares = np.arange(n_parts) / n_parts
        a, b = self.per_pair, self.per_token
        total = a * n_tokens**2 + b * n_tokens
        if a > 0:
            places = (np.sqrt(b**2 + 4 * a * shares * total) - b) / (2 * a)
        else:
            places = shares * n_tokens
        return sorted({int(place) // multiple * multiple for place in places})


def _memory_holds_one_per_stage(sample: Sample, cost: CostModel, cluster: Cluster) -> bool:
    alone = Shapes.padded(np.ones(1), np.full(1, float(sample.tokens)), np.zeros(1))
    costs = cost.of_layout(Layout.PACKED).stage_costs(alone, cost.recompute_modes[0])
    needed_bytes = cluster.n_stages * costs.stored_bytes[0]
    return bool((needed_bytes <= activation_room_bytes(cost, cluster)).all())


def _cut_at(sample: Sample, begins: Sequence[int]) -> Cut:
    bounds = pairwise([*begins, sample.tokens])
    return Cut(sample, tuple(Slice(begin, end, sample.tokens) for begin, end in bounds))
