"""View of a run while it executes, from its run folder alone."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from dynapipe_hpc.experiment.run.explain_run import how_it_stands
from dynapipe_hpc.report.amounts import duration, short
from dynapipe_hpc.report.drawing import measured_strip
from dynapipe_hpc.report.run_folder import iterations_file, timelines_file

N_CURVE = 60
"""Iterations in the curve of the loss."""
MAX_BYTES = 1 << 17
"""End of iterations.jsonl that is read: more than `N_CURVE` lines."""
MAX_TIMELINE_BYTES = 1 << 24
WIDTH = 40
_LEVELS = "▁▂▃▄▅▆▇█"


def live_view(folder: Path) -> list[str]:
    """Lines of at most 100 columns, but for names: progress, numbers, ranks, and how it stands.

    Args:
        folder: A run folder, which may be growing.

    Raises:
        InputError: It is no run folder, or a file of it is damaged.
    """
    state = how_it_stands(folder)
    return [str(folder), *_progress(folder), *_ranks(folder), state]


def _progress(folder: Path) -> Iterator[str]:
    last = iterations_file(folder).last(N_CURVE, MAX_BYTES)
    if not last:
        yield "no iteration is done yet"
        return
    now = last[-1]
    n_done, n = now.iteration + 1, now.n_iterations
    bar = "#" * (WIDTH * n_done // n)
    left, tokens = duration(now.seconds_left), short(now.tokens)
    yield f"[{bar:.<{WIDTH}}] {n_done:,} of {n:,} iterations, {left} left, {tokens} tokens"
    yield f"loss {_number(now.loss, '.4f')} {_curve([each.loss for each in last])}"
    yield (
        f"lr {_number(now.learning_rate, '.2e')}, norm {_number(now.gradient_norm, '.3g')}, "
        f"{short(now.tokens_per_s)} tok/s, {100 * now.padding_efficiency:.0f} % real, bubble "
        f"{_number(now.bubble_share, '.0%')}"
    )
    yield (
        f"iteration {now.measured_ms:,.0f} ms, predicted {now.predicted_ms:,.0f} ms, longest trip "
        f"{now.longest_trip_share:.0%}; {now.plans_ahead} plans ahead; activations at most "
        f"{now.measured_peak_bytes / 1e6:,.1f} MB"
    )


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)


def _curve(values: Sequence[float]) -> str:
    """A letter per value, higher for larger ones; a blank for what is not finite."""
    known = [value for value in values if math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    steps = (len(_LEVELS) - 1) / (high - low) if high > low else 0.0
    return "".join(_LEVELS[round((v - low) * steps)] if math.isfinite(v) else " " for v in values)


def _ranks(folder: Path) -> Iterator[str]:
    for timeline in timelines_file(folder).last(1, MAX_TIMELINE_BYTES):
        yield f"ranks in iteration {timeline.iteration}, the last one traced:"
        yield from measured_strip(timeline)
