"""What time it is on a GPU."""

import torch

Event = torch.cuda.Event


class CudaClock:
    """Notes moments on the stream of computation, which reaches them after the host."""

    def now(self) -> Event:
        """An event behind everything that was launched."""
        event = Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def ms_between(self, start: Event, end: Event) -> float:
        """Time between two events."""
        end.synchronize()
        elapsed: float = start.elapsed_time(end)
        return elapsed
