"""Keys and values of the samples of which a stage is running slices."""

from collections.abc import Iterator

from torch import Tensor

from dynapipe_hpc.data.microbatch import MicroBatch, Slice
from dynapipe_hpc.models.key_value_cache import KeyValueCache


class SlicedSamples:
    """Keys and values of sliced samples, from the first slice's forward pass to the last use.

    In training that is the first slice's backward pass, as it comes after those of all others.
    """

    def __init__(self) -> None:
        self._slices: dict[int, tuple[int, Slice]] = {}
        self._caches: dict[int, KeyValueCache] = {}
        self._first: dict[int, int] = {}

    def load(self, index: int, microbatch: MicroBatch) -> KeyValueCache | None:
        """The keys and values of the sample of a micro-batch's slice; None if it has no slice."""
        part = microbatch.slice
        if part is None:
            return None
        sample_id = microbatch.sample_ids[0]
        self._slices[index] = sample_id, part
        if part.begin == 0:
            self._first[sample_id] = index
        return self._caches.setdefault(sample_id, KeyValueCache(part.n_tokens))

    @property
    def tensors(self) -> Iterator[tuple[int, Tensor]]:
        """The tensors held, each with the micro-batch of the sample's first slice."""
        for sample_id, kv_cache in self._caches.items():
            for tensor in kv_cache.tensors:
                yield self._first[sample_id], tensor

    def forget_if_done(self, index: int) -> None:
        """Forgets the sample of a slice that has gone back, if that was its first one."""
        sample_id, part = self._slices.pop(index, (0, None))
        if part and part.begin == 0:
            self._forget(sample_id)

    def forget_if_read(self, index: int) -> None:
        """Forgets the sample of a slice that goes forward only, if that was its last one."""
        sample_id, part = self._slices.pop(index, (0, None))
        if part and part.end == part.n_tokens:
            self._forget(sample_id)

    def _forget(self, sample_id: int) -> None:
        del self._caches[sample_id], self._first[sample_id]
