"""The simulated timeline of a schedule."""

from dataclasses import dataclass

from dynapipe_hpc.planner.cost.cost_model import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """A schedule in time, in ms from the start of the iteration.

    Arrays of shape (n_stages, n_passes) hold the passes of each stage in the order of the
    schedule.

    `send_start_ms`: Start of the transfer of what the pass produced, same shape; NaN where nothing
    is sent: after F on the last stage, B on the first, and W. `send_end_ms`: End of that transfer,
    when the neighbouring stage has the data, same shape.
    """

    start_ms: FloatArray  # start of each pass, shape (n_stages, n_passes)
    end_ms: FloatArray  # end of each pass, same shape
    send_start_ms: FloatArray
    send_end_ms: FloatArray
    peak_bytes: FloatArray  # peak memory of each stage, static memory included, shape (n_stages,)
    busy_ms: FloatArray  # time in which each stage computes, shape (n_stages,)
    makespan_ms: float
