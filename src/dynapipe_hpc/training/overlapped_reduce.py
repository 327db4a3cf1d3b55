"""Bucketed, overlapped all-reduce of gradients over replicas, during the last backward pass."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from torch import Tensor, nn

from dynapipe_hpc.training.collectives import Collectives
from dynapipe_hpc.training.flat_parameters import FlatParameters

BUCKET_BYTES = 32 << 20
"""Smallest bucket of gradients in bytes, large enough to use a link well."""


@dataclass(slots=True)
class _Bucket:
    """Bucket of neighbouring matrices."""

    start: int
    gradients: Tensor
    matrices: frozenset[int]
    missing: set[int] = field(default_factory=set)


class OverlappedGradientReduce:
    """Bucketed overlapped all-reduce of the gradients of matrices, last layers first.

    All replicas start the sums of buckets in the order of the backward pass, each when its
    gradients are complete. Small weights wait for the end, as do tied ones, to whose gradients
    other stages add.

    A parameter holds this object through its hook, and the garbage collector does not see cycles
    through hooks. So this object holds gradients, but no parameter.
    """

    def __init__(
        self,
        own_parameters: FlatParameters,
        collectives: Collectives,
        tied: Collection[nn.Parameter] = (),
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._collectives = collectives
        matrices_of = _buckets(own_parameters, tied, bucket_bytes)
        self._buckets = [bucket for bucket, _ in matrices_of]
        first = self._buckets[-1].start if self._buckets else own_parameters.n_decaying
        self._late = [
            g
            for g in (
                own_parameters.gradients[:first],
                own_parameters.gradients[own_parameters.n_decaying :],
            )
            if len(g)
        ]
        self._is_last = False
        self._pending: list[Callable[[], None]] = []
        for bucket, matrices in matrices_of:
            for matrix in matrices:
                matrix.register_post_accumulate_grad_hook(self._arrived(bucket))  # type: ignore[no-untyped-call]

    def expect_last_backward(self, adds_to: Iterable[Tensor]) -> None:
        """Announces that the next backward pass completes the gradients.

        `adds_to`: Parameters to whose gradients the pass adds; not all parameters if it is the
        second half of a split pass.
        """
        self._is_last = True
        missing = {id(parameter) for parameter in adds_to}
        for bucket in self._buckets:
            bucket.missing = missing.intersection(bucket.matrices)
        self._start_complete()

    def finish(self) -> None:
        """Starts the remaining sums and waits for all of them."""
        self._start(self._buckets)
        for gradients in self._late:
            self._collectives.sum_over_replicas(gradients)
        for wait in self._pending:
            wait()
        self._is_last, self._pending = False, []

    def _arrived(self, bucket: _Bucket) -> Callable[[Tensor], None]:
        def arrived(matrix: Tensor) -> None:
            if self._is_last:
                bucket.missing.discard(id(matrix))
                self._start_complete()

        return arrived

    def _start_complete(self) -> None:
        self._start(list(takewhile(lambda bucket: not bucket.missing, self._buckets)))

    def _start(self, buckets: Sequence[_Bucket]) -> None:
        """Starts the sums of the first buckets, except those already started."""
        for bucket in buckets[len(self._pending) :]:
            self._pending.append(self._collectives.start_sum_over_replicas(bucket.gradients))


def _buckets(
    own_parameters: FlatParameters, tied: Collection[nn.Parameter], bucket_bytes: int
) -> list[tuple[_Bucket, list[nn.Parameter]]]:
    buckets: list[tuple[_Bucket, list[nn.Parameter]]] = []
    parameters: list[nn.Parameter] = []
    end = own_parameters.n_decaying
    matrices = [
        p
        for p, g in own_parameters.gradient_of.items()
        if g.storage_offset() < own_parameters.n_decaying
    ]
    for parameter in reversed(matrices):
        if any(parameter is other for other in tied):
            break
        parameters.append(parameter)
        start = int(own_parameters.gradient_of[parameter].storage_offset())
        if (
            end - start
        ) * own_parameters.gradients.itemsize >= bucket_bytes or parameter is matrices[0]:
            identities = frozenset(map(id, parameters))
            bucket = _Bucket(start, own_parameters.gradients[start:end], identities)
            buckets.append((bucket, parameters))
            parameters, end = [], start
    return buckets
