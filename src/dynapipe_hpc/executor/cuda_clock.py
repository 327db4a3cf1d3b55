"""Clock of a GPU."""

import torch

Event = torch.cuda.Event


class CudaClock:
    """Clock that records moments as events on the compute stream, which runs behind the host."""

    def now(self) -> Event:
        """An event after everything that was launched."""
        event = Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def has_passed(self, moment: Event) -> bool:
        """Whether the device has reached an event; any thread may ask."""
        # A thread starts with GPU 0, where its first query would create a context: 0.5 GiB on
        # another rank's GPU.
        torch.cuda.set_device(moment.device)
        return bool(moment.query())  # type: ignore[no-untyped-call]

    def ms_between(self, start: Event, end: Event) -> float:
        """Time between two events in ms."""
        end.synchronize()
        elapsed: float = start.elapsed_time(end)
        return elapsed
