"""Rule by which long samples are cut into slices."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field

from dynapipe_hpc.data.microbatch import Layout, PackedRow, Recompute, Slice
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.row_length import ROW_MULTIPLE, padded
from dynapipe_hpc.planner.cost.cost_model import CostModel, Shapes

SliceSetting = Literal["off", "auto"] | Annotated[int, Field(ge=ROW_MULTIPLE)]
"""Whether samples are cut, and into what: nothing, what the rule says, or so many tokens each."""

MIN_SLICE_TOKENS = 1024
"""Fewest tokens of a slice that the rule makes: so many as keep kernels busy."""
MAX_SLICES = 64
WALL_SHARE = 0.4
"""Share of a replica's work that the longest sample's way through all stages takes, from which a
plan of whole samples may wait for it. Below, others fill the gap, and nothing is cut."""
WORTHWHILE_SHARE = 0.05
"""Share of a replica's work that the trip of a sample takes, from which it is worth slices, too."""
SPARE_SHARE = 0.01
"""The same below which more slices are not worth it."""


class Cut(NamedTuple):
    """Slices of a sample.

    Attributes:
        sample: The sample.
        slices: The slices of it, in order; at least two.
    """

    sample: Sample
    slices: tuple[Slice, ...]

    def rows(self, recompute: Recompute, token_multiple: int) -> list[PackedRow]:
        """A row for every slice, filled up to a multiple."""
        return [
            PackedRow(
                (self.sample.sample_id,),
                padded(part.end - part.begin, token_multiple),
                (0, part.end - part.begin),
                recompute,
                slice=part,
            )
            for part in self.slices
        ]


@dataclass(frozen=True, slots=True)
class SliceRule:
    """Rule by which long samples are cut into slices.

    A sample goes through n stages and back while others wait, unless they fill the gap: its trip
    takes n - 1 stages longer than its work on one. Cut into k parts of equal time, it takes as much
    for one part only. Where others can no longer fill the gap of the longest sample, the rule cuts
    all whose trips take a share of a replica's work, into as many parts, a power of two, as make
    that share small. It also cuts samples that do not fit whole. Or it cuts all longer samples into
    parts of so many tokens, as it is told.

    Attributes:
        setting: What samples are cut into.
        token_multiple: Multiple that rows are filled up to.
    """

    setting: SliceSetting = "off"
    token_multiple: int = ROW_MULTIPLE

    def cuts(
        self, samples: Sequence[Sample], cost: CostModel, cluster: Cluster, n_misfits: int = 0
    ) -> list[list[Cut]]:
        """Ways to cut the longest samples; nothing if none is worth it.

        Args:
            samples: Samples, the longest first.
            cost: Cost model of a decoder-only model.
            cluster: The cluster.
            n_misfits: Number of the first samples that cannot run whole.

        Returns:
            For the first samples, as many as are cut, cuts into fewer and into more slices.
        """
        if self.setting == "off" or not cost.cache_bytes.any():
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
        times = _Times.from_cost(cost)
        work_ms = times.per_token * tokens + times.per_pair * tokens**2
        shares = work_ms / (work_ms.sum() / cluster.n_replicas)
        if not n_misfits and cluster.n_stages * shares[0] < WALL_SHARE:
            return
        trips = (cluster.n_stages - 1) * shares
        for place, (sample, trip) in enumerate(zip(samples, trips.tolist(), strict=True)):
            most = min(sample.tokens // MIN_SLICE_TOKENS, MAX_SLICES)
            is_misfit = place < n_misfits
            wanted = most if is_misfit else min(most, trip / SPARE_SHARE)
            if (trip < WORTHWHILE_SHARE and not is_misfit) or wanted < 2:
                return
            n_slices = 2 ** int(np.log2(wanted))
            cuts = [
                _cut_at(sample, times.equal_parts(sample.tokens, n, self.token_multiple))
                for n in sorted({max(2, n_slices // 4), n_slices})
            ]
            if min(len(cut.slices) for cut in cuts) < 2:  # rows are longer than parts
                return
            yield cuts


class _Times(NamedTuple):
    """Time of both passes on the slowest stage, per token and per pair of tokens of a sample."""

    per_token: float
    per_pair: float

    @classmethod
    def from_cost(cls, cost: CostModel) -> "_Times":
        """Times from the longest row that is known, and twice as many of half the length.

        Both have as many tokens, but the longer one twice as many pairs.
        """
        known = cost.of_layout(Layout.PACKED)
        length = float(max(cost.known_rows.longest_tokens, 2 * MIN_SLICE_TOKENS))
        while length > ROW_MULTIPLE:
            sizes = np.array([1.0, 2.0]), np.array([length, length / 2]), np.zeros(2)
            costs = known.stage_costs(Shapes.padded(*sizes), cost.recompute_modes[-1])
            one_ms, two_ms = costs.work_ms.max(axis=1).tolist()
            if np.isfinite(one_ms) and np.isfinite(two_ms):
                per_pair = max(one_ms - two_ms, 0.0) / (length**2 / 2)
                return cls(max(one_ms / length - per_pair * length, 0.0), per_pair)
            length /= 2
        return cls(1.0, 0.0)

    def equal_parts(self, n_tokens: int, n_parts: int, multiple: int) -> list[int]:
        """Beginnings of parts of a sample that take equally long, in multiples of tokens."""
        shares = np.arange(n_parts) / n_parts
        a, b = self.per_pair, self.per_token
        total = a * n_tokens**2 + b * n_tokens
        if a > 0:
            places = (np.sqrt(b**2 + 4 * a * shares * total) - b) / (2 * a)
        else:
            places = shares * n_tokens
        return sorted({int(place) // multiple * multiple for place in places})


def _cut_at(sample: Sample, begins: Sequence[int]) -> Cut:
    bounds = pairwise([*begins, sample.tokens])
    return Cut(sample, tuple(Slice(begin, end, sample.tokens) for begin, end in bounds))
