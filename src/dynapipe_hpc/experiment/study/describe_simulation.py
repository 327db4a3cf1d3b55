"""A simulation as a table: what is predicted of every method."""

from collections.abc import Iterator, Sequence
from statistics import median

import numpy as np

from dynapipe_hpc.report.planned_iteration import PlannedIteration
from dynapipe_hpc.report.simulation_folder import Planned

_COLUMNS = "{:>10} {:>7} {:>12} {:>21} {:>7} {:>7} {:>7} {:>12} {:>9}  {}"


def describe_simulation(planned: Sequence[Planned]) -> Iterator[str]:
    """Lines of a table, in the order of methods, and the reasons of iterations without a plan.

    The trip is the share of an iteration that the longest sample's way through the stages takes.
    Tokens per second are all real tokens over the sum of predicted times, as in the paper. Methods
    that cannot plan every iteration have none, as the others would not be the same samples.
    """
    of_method: dict[str, list[Planned]] = {}
    for each in planned:
        of_method.setdefault(each.record.method, []).append(each)
    yield f"simulated, {len(planned) // max(1, len(of_method)):,} iterations; nothing was run:"
    yield _COLUMNS.format(
        *("tokens/s", "of best", "iteration", "quartiles", "trip", "real", "decoder"),
        *("planning", "ratio", "method"),
    )
    rates = {name: tokens_per_s([each.record for each in of]) for name, of in of_method.items()}
    best = max((rate for rate in rates.values() if rate), default=None)
    for name, every in of_method.items():
        feasible = [each for each in every if not each.record.reason]
        if feasible:
            yield _line(name, feasible, rates[name], best)
    for name, every in of_method.items():
        reasons = [each.record.reason for each in every if each.record.reason]
        if reasons:
            first = f"iteration {next(e.record.iteration for e in every if e.record.reason)}"
            failure = f"no plan of {len(reasons):,} of {len(every):,} iterations"
            yield f"{name}: {failure}, the first is {first}: {reasons[0]}"


def tokens_per_s(records: Sequence[PlannedIteration]) -> float | None:
    """Real tokens per predicted second over all iterations; None if one of them has no plan."""
    if any(record.reason for record in records):
        return None
    tokens = sum(record.input_tokens + record.target_tokens for record in records)
    return 1e3 * tokens / sum(record.iteration_ms for record in records)


def real_shares(records: Sequence[PlannedIteration]) -> tuple[float, float | None]:
    """Real share of the tokens computed, and that of a decoder's rows; None without an encoder."""
    inputs, targets, rows, target_rows = (
        sum(getattr(record, name) for record in records)
        for name in ("input_tokens", "target_tokens", "row_tokens", "target_row_tokens")
    )
    if target_rows:
        return inputs / rows, targets / target_rows
    return (inputs + targets) / rows, None


def _line(name: str, feasible: Sequence[Planned], rate: float | None, best: float | None) -> str:
    records = [each.record for each in feasible]
    times_ms = [record.iteration_ms for record in records]
    real, decoder = real_shares(records)
    shares = [each.planning_ms / each.record.iteration_ms for each in feasible]
    low, high = np.quantile(times_ms, (0.25, 0.75))
    return _COLUMNS.format(
        f"{rate:,.0f}" if rate else "-",
        f"{rate / best:.3f}" if rate and best else "-",
        f"{median(times_ms):,.1f} ms",
        f"{low:,.1f} to {high:,.1f} ms",
        f"{median(r.longest_trip_ms / r.iteration_ms for r in records):.3f}",
        f"{real:.3f}",
        "-" if decoder is None else f"{decoder:.3f}",
        f"{median(each.planning_ms for each in feasible):,.1f} ms",
        f"{median(shares):.4f}",
        name,
    )
