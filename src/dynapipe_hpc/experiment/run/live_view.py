"""View of a run while it executes, from its run folder alone."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.experiment.run.explain_run import how_it_stands
from dynapipe_hpc.report.amounts import duration, short
from dynapipe_hpc.report.complete_lines import last_lines
from dynapipe_hpc.report.plan_strip import measured_strip
from dynapipe_hpc.report.run_folder import METRICS, TRACE
from dynapipe_hpc.report.trace_file import TraceFile

N_CURVE = 60
"""Iterations in the curve of the loss."""
MOST_BYTES = 1 << 16
"""End of metrics.jsonl that is read: more than `N_CURVE` lines."""
WIDTH = 40
_LEVELS = "▁▂▃▄▅▆▇█"

_Numbers = Mapping[str, Any]


def live_view(folder: Path) -> list[str]:
    """Lines of at most 100 columns, but for names: progress, numbers, ranks, and how it stands.

    Args:
        folder: A run folder, which may be growing.

    Raises:
        InputError: It is no run folder, or a file of it is damaged.
    """
    state = how_it_stands(folder)
    return [str(folder), *_progress(folder / METRICS), *_ranks(folder), state]


def _progress(metrics: Path) -> list[str]:
    last = last_lines(metrics, MOST_BYTES)[-N_CURVE:]
    try:
        return [*_numbers([json.loads(line) for line in last])]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(
            f"{metrics}: one of its last {N_CURVE} lines is not an iteration's metrics "
            f"({quoted(error)}); remove it"
        ) from error


def _numbers(last: Sequence[_Numbers]) -> Iterator[str]:
    if not last:
        yield "no iteration is done yet"
        return
    now = last[-1]
    n_done, n = now["iteration"] + 1, now["iterations"]
    bar = "#" * (WIDTH * n_done // n)
    left = duration(now["seconds_left"])
    tokens = short(now["tokens"])
    yield f"[{bar:.<{WIDTH}}] {n_done:,} of {n:,} iterations, {left} left, {tokens} tokens"
    yield f"loss {_number(now['loss'], '.4f')} {_curve([each['loss'] for each in last])}"
    yield (
        f"lr {_number(now['learning_rate'], '.2e')}, norm {_number(now['gradient_norm'], '.3g')}, "
        f"{short(now['tokens_per_s'])} tok/s, {100 * now['padding_efficiency']:.0f} % real, bubble "
        f"{_number(now['bubble_share'], '.0%')}"
    )
    yield (
        f"iteration {1e3 * now['seconds']:,.0f} ms, predicted "
        f"{1e3 * now['predicted_seconds']:,.0f} ms; {now['plans_ahead']} plans ahead; activations "
        f"at most {now['peak_bytes'] / 1e6:,.1f} MB"
    )


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _curve(values: Sequence[float | None]) -> str:
    """A letter per value, higher for larger ones; a blank for what is not finite."""
    known = [value for value in values if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    steps = (len(_LEVELS) - 1) / (high - low) if high > low else 0.0
    return "".join(" " if v is None else _LEVELS[round((v - low) * steps)] for v in values)


def _ranks(folder: Path) -> Iterator[str]:
    timeline = TraceFile(folder / TRACE).last()
    if timeline is not None:
        yield f"ranks in iteration {timeline.iteration}, the last one traced:"
        yield from measured_strip(timeline)
