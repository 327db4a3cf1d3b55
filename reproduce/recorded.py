"""Results that a benchmark measured and the repository keeps, as nothing of it is executed here."""

import json
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"


class Recorded(NamedTuple):
    """Results of a benchmark.

    Attributes:
        results: Results by case.
        where: Machine, version and benchmark that they come from, in words.
    """

    results: dict[str, Any]
    where: str


def recorded(path: Path, benchmark: str) -> Recorded:
    """Reads what a benchmark wrote.

    Args:
        path: The JSON file.
        benchmark: Name of the benchmark, for the reader.
    """
    found = json.loads(path.read_text())
    machine = found["machine"]
    where = (
        f"on {machine['processor']} with {machine['cores']} cores, commit {machine['commit']}, by "
        f"`{benchmark}`, not here"
    )
    return Recorded(found["results"], where)
