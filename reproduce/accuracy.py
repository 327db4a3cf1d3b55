"""Errors of predictions for runs that were executed."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from reproduce.figure import Claim
from reproduce.recorded import RESULTS, recorded

MOST = 0.05
FILES = (RESULTS / "prediction.json", RESULTS / "prediction_online.json")


def claims(files: Sequence[Path] = FILES) -> Iterator[Claim]:
    """Results of `benchmarks/prediction.py`; nothing is executed here.

    Args:
        files: The JSON files that it has written, each on one machine.
    """
    for results in files:
        yield from _claims(results)


def _claims(results: Path) -> Iterator[Claim]:
    found = recorded(results, "benchmarks/prediction.py")
    for name, errors in found.results.items():
        family, corrected, _ = name.partition(", online")
        by = ", corrected by the run," if corrected else ""
        time, memory = (float(errors[key]) for key in ("mean_error", "mean_peak_error"))
        yield Claim(
            "C5",
            f"{family.upper()}: predicted times{by} and memory are within {MOST:.0%} of executed "
            "runs on average",
            "mean error of memory below 6 %, of times only drawn",
            f"times {100 * time:.1f} %{_spread(errors)}, memory {100 * memory:.1f} %",
            max(time, memory) < MOST,
            f"measured on two CPU ranks {found.where}; no GPU has been tried",
        )


def _spread(errors: Mapping[str, float]) -> str:
    """The range over repeats, if there are any."""
    if "repeats" not in errors:
        return ""
    least, most = (f"{100 * float(errors[key]):.1f}" for key in ("least", "most"))
    return f" (median of {errors['repeats']:.0f}, {least} to {most} %)"
