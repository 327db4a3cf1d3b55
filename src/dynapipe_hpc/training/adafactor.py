"""Adafactor: second moments of matrices are kept as averages of their rows and columns."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dynapipe_hpc.models.sharding.shards import Shards
from dynapipe_hpc.models.sharding.split import Split
from dynapipe_hpc.training.config import TrainingConfig
from dynapipe_hpc.training.flat_parameters import FlatView
from dynapipe_hpc.training.update_rule import Factor, FlatState, Segment

ROWS, COLUMNS, WHOLE = "row_average", "column_average", "second_moment"
MIN_SQUARE = 1e-30
MIN_SCALE = 1e-3


@dataclass(eq=False, slots=True)
class _Weight:
    """A weight of this rank; what fills up a shard of it is zero, as are the gradients of that.

    Attributes:
        view: Location in the flat buffers.
        decays: Whether it decays.
        averages: Averages of squared gradients by kind: of rows and columns, or of every number.
        sums: Sums of this update that shards add up, by what they are of.
    """

    view: FlatView
    weight: Tensor
    gradient: Tensor
    decays: bool
    averages: dict[str, Tensor]
    sums: dict[str, Tensor] = field(default_factory=dict)

    @property
    def cut(self) -> int | None:
        """The dimension that is cut over shards; None if the weight is whole."""
        split = self.view.split
        return split.dimension if split.n_shards > 1 else None

    @property
    def whole_shape(self) -> torch.Size:
        """Shape of the weight on all shards."""
        return self.view.split.whole_shape(self.view.shape)

    @property
    def is_factored(self) -> bool:
        """Whether averages of rows and columns stand for those of all numbers."""
        return self.weight.ndim == 2

    def square_sum(self, values: Tensor) -> Tensor:
        """Sum of squares of this shard's part of something, shape (1,)."""
        return values.square().sum().view(1)

    def rms(self, name: str) -> Tensor:
        """Root mean square over all shards, from the sum of squares of that name."""
        return (self.sums[name] / self.whole_shape.numel()).sqrt()


class Adafactor:
    """Adafactor without first moments, on weights in flat buffers; see `UpdateRule`.

    Averages of rows and columns are those of the whole matrix: shards add up the sums of what is
    cut between them, so that an update is the same on any number of shards, to rounding.

    Source:
        Shazeer and Stern, "Adafactor", ICML 2018, arXiv:1804.04235, algorithms 4 to 6. Constants,
        and the order of decay and update, are those of `transformers`.
    """

    def __init__(
        self,
        weights: Tensor,
        gradients: Tensor,
        views: Sequence[FlatView],
        *,
        n_matrices: int,
        config: TrainingConfig,
        shards: Shards,
    ) -> None:
        """Takes over `weights` and reads `gradients`, both of shape (n,) and at least 32 bits."""
        self._config, self._shards = config, shards
        self._flat = weights
        self._n_updates = torch.zeros((), dtype=torch.float64, device=weights.device)
        self._weights = [
            _weight(view, weights, gradients, n_matrices, config=config) for view in views
        ]

    @property
    def n_updates(self) -> int:
        """Number of updates so far, without skipped ones; the host waits for the device."""
        return int(self._n_updates.item())

    @n_updates.setter
    def n_updates(self, value: int) -> None:
        self._n_updates.fill_(value)

    @property
    def tensors(self) -> list[Tensor]:
        """Weights and averages."""
        return [self._flat, *(a for w in self._weights for a in w.averages.values())]

    def state(self, first: int) -> FlatState:
        """Weights, of which `first` is the index of the first in the flat buffer."""
        return {"weight": Segment(first, self._flat)}

    def factors(self) -> list[Factor]:
        """Averages of rows and columns, or of every number of a vector."""
        return [
            Factor(kind, _view_of_averages(w, kind), average)
            for w in self._weights
            for kind, average in w.averages.items()
        ]

    def update(self, learning_rate: float, skips: Tensor) -> None:
        """Updates weights and averages; see `UpdateRule`."""
        keeps = skips.bool()
        self._n_updates += 1 - skips
        forgets = (self._n_updates.clamp(min=1) ** self._config.adafactor.decay_rate).to(
            self._flat.dtype
        )
        for w in self._weights:
            w.sums = dict(_first_sums(w))
        self._add_over_shards()
        for w in self._weights:
            _average(w, forgets, keeps)
            if w.is_factored:
                w.sums["rows"] = w.averages[ROWS].sum().view(1)
        self._add_over_shards("rows")
        for w in self._weights:
            w.sums["update"] = w.square_sum(_direction(w))
        self._add_over_shards("update")
        for w in self._weights:
            self._apply(w, learning_rate, keeps)
            w.sums = {}

    def _apply(self, w: _Weight, learning_rate: float, keeps: Tensor) -> None:
        settings = self._config.adafactor
        rate = torch.full_like(w.sums["update"], learning_rate)
        if settings.scale_parameter:
            rate *= w.rms("weight").clamp(min=MIN_SCALE)
        step = _direction(w) * (rate / (w.rms("update") / settings.clip_threshold).clamp(min=1))
        decay = self._config.weight_decay if w.decays else 0.0
        w.weight.copy_(torch.where(keeps, w.weight, w.weight * (1 - decay * rate) - step))

    def _add_over_shards(self, *names: str) -> None:
        """Adds sums of cut weights over shards, of some names or of all."""
        if self._shards.n_shards == 1:
            return
        pending = [
            (w, name)
            for w in self._weights
            if w.cut is not None
            for name in w.sums
            if name in (names or w.sums) and not _is_complete(w, name)
        ]
        if not pending:
            return
        flat = torch.cat([w.sums[name] for w, name in pending])
        sizes = [len(w.sums[name]) for w, name in pending]
        parts = torch.split(self._shards.sum_over_shards(flat), sizes)
        for (w, name), part in zip(pending, parts, strict=True):
            w.sums[name] = part


def _weight(
    view: FlatView,
    weights: Tensor,
    gradients: Tensor,
    n_matrices: int,
    *,
    config: TrainingConfig,
) -> _Weight:
    def viewed(flat: Tensor) -> Tensor:
        numbers = flat[view.start : view.start + view.shape.numel()]
        return numbers.view(view.shape)

    weight = viewed(weights)
    shapes = (
        {ROWS: weight.shape[:1], COLUMNS: weight.shape[1:]}
        if weight.ndim == 2
        else {WHOLE: weight.shape}
    )
    averages = {kind: weight.new_zeros(shape) for kind, shape in shapes.items()}
    decays = config.decay == "all" or view.start < n_matrices
    return _Weight(view, weight, viewed(gradients), decays, averages)


def _first_sums(w: _Weight) -> Iterator[tuple[str, Tensor]]:
    """Sums of squares of the weight, and of the rows and columns of its gradient."""
    yield "weight", w.square_sum(w.weight)
    if w.is_factored:
        squares = w.gradient.square() + MIN_SQUARE
        yield ROWS, squares.sum(1)
        yield COLUMNS, squares.sum(0)


def _is_complete(w: _Weight, name: str) -> bool:
    """Whether a sum of a cut weight does not go over the cut."""
    along: dict[str, int] = {ROWS: 0, COLUMNS: 1, "rows": 1}
    return along.get(name) == w.cut


def _average(w: _Weight, forgets: Tensor, keeps: Tensor) -> None:
    """Moves the averages towards the squares of the gradient."""
    if w.is_factored:
        n_rows, n_columns = w.whole_shape
        means = {ROWS: w.sums[ROWS] / n_columns, COLUMNS: w.sums[COLUMNS] / n_rows}
    else:
        means = {WHOLE: w.gradient.square() + MIN_SQUARE}
    for kind, average in w.averages.items():
        moved = average * (1 - forgets) + means[kind] * forgets
        average.copy_(torch.where(keeps, average, moved))


def _direction(w: _Weight) -> Tensor:
    """The gradient over the root of its mean squares; not a number if the update is skipped."""
    if not w.is_factored:
        return w.averages[WHOLE].rsqrt() * w.gradient
    mean = w.sums["rows"] / w.whole_shape[0]
    rows = (w.averages[ROWS] / mean).rsqrt()
    return rows[:, None] * w.averages[COLUMNS].rsqrt() * w.gradient


def _view_of_averages(w: _Weight, kind: str) -> FlatView:
    """View of the averages of a kind in those of the whole weight."""
    view, split = w.view, w.view.split
    if kind == WHOLE:
        return FlatView(view.name, 0, view.shape, split)
    dimension = 0 if kind == ROWS else 1
    shape = torch.Size([view.shape[dimension]])
    if w.cut == dimension:
        cut = Split(0, split.n_blocks, split.shard, split.n_shards, split.whole_size)
    else:
        cut = Split(0, 1, 0, 1)
    return FlatView(view.name, 0, shape, cut)
