"""Throughput of methods over seeds, as rows, gains and bars of a figure."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from dynapipe_hpc.experiment.study.predict import Planned, tokens_per_s
from reproduce.drawing import draw_bars
from reproduce.figure import Row
from reproduce.studies import Method, of_method

Rates = Mapping[str, Sequence[float]]
"""Real tokens per second by seed, of every method that can run."""


def rates_of(of_seeds: Sequence[Sequence[Planned]], compared: Sequence[Method]) -> Rates:
    """Rates of the methods that plan every batch of every seed."""
    found = {}
    for name in (str(method["name"]) for method in compared):
        rates = [tokens_per_s([p.record for p in of_method(each, name)]) for each in of_seeds]
        known = [rate for rate in rates if rate is not None]
        if len(known) == len(rates):
            found[name] = known
    return found


def rows_of(setting: str, found: Rates) -> Iterator[Row]:
    """A row per method: its median over seeds, and their range."""
    for name, rates in found.items():
        yield {
            "setting": setting,
            "method": name,
            "tokens_per_s": median(rates),
            "least": min(rates),
            "most": max(rates),
        }


def gain_percent(found: Rates, method: str, other: str) -> float:
    """Median over seeds of how much faster one method is than another, in percent."""
    pairs = zip(found[method], found[other], strict=True)
    return 100 * (median(one / two for one, two in pairs) - 1)


def draw_rates(rows: Sequence[Row], path: Path) -> None:
    """A panel per setting with a bar per method."""
    settings = dict.fromkeys(str(row["setting"]) for row in rows)
    panels = {each: [row for row in rows if row["setting"] == each] for each in settings}
    draw_bars(path, panels)
