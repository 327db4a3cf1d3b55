"""Numbers for the receive buffers of a rank."""

import heapq


class ReceiveSlots:
    """Hands out the lowest free slot and takes back a micro-batch's slots together."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._n_slots = 0
        self._held: dict[int, list[int]] = {}

    def take(self, microbatch: int) -> int:
        """A slot for one tensor of a micro-batch."""
        if not self._free:
            heapq.heappush(self._free, self._n_slots)
            self._n_slots += 1
        slot = heapq.heappop(self._free)
        self._held.setdefault(microbatch, []).append(slot)
        return slot

    def release(self, microbatch: int) -> None:
        """Frees the slots of a micro-batch, whose Backward is done."""
        for slot in self._held.pop(microbatch, []):
            heapq.heappush(self._free, slot)
