"""Growth of the plan store's work with the ranks of a job."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from reproduce.drawing import draw_lines
from reproduce.figure import Claim, Figure, Row
from reproduce.recorded import RESULTS, recorded

RANKS_PER_HOST = 8
STEPS = {
    "plan": "planner: accesses to other hosts",
    "take": "rank: calls to take its plan",
    "agree": "rank: collectives to agree and report",
}
KINDS = ("messages", "collectives", "one_sided")


def figure(results: Path = RESULTS / "growth.json") -> Figure:
    """Calls of MPI per iteration over ranks: counted, and by the laws fitted to the counts.

    Args:
        results: The JSON file that `benchmarks/growth.py` writes.
    """
    found = recorded(results, "benchmarks/growth.py")
    counted = [
        _row(STEPS[step], int(n_ranks), sum(counts[step][kind] for kind in KINDS), "counted")
        for n_ranks, counts in found.results["measured"].items()
        for step in STEPS
    ]
    modelled = [
        _row(STEPS[step], int(n_ranks), _at(found.results["laws"][step], int(n_ranks)), "law")
        for n_ranks in found.results["modelled_us"]
        for step in STEPS
    ]
    rows = [*counted, *modelled]
    return Figure(
        "store_growth",
        "How does the work of the plan store grow with the ranks of a job?",
        "Counted: calls of MPI of the rank that makes most, per iteration, with real ranks that "
        f"share two cores, eight to a host; {found.where}. 1,024 and 4,096 ranks follow from laws "
        "that fit the counts without a remainder.",
        "Nothing grows for ranks, and a planner's accesses grow with the hosts.",
        rows,
        partial(_draw, rows),
        [*_claims(rows, found.results["modelled_us"])],
    )


def _row(step: str, n_ranks: int, calls: float, source: str) -> Row:
    return {"method": step, "ranks": n_ranks, "calls": calls, "source": source}


def _at(law: Mapping[str, Sequence[float]], n_ranks: int) -> float:
    """Calls by the law: a constant, a number per host and one per rank."""
    n_hosts = -(-n_ranks // RANKS_PER_HOST)
    return sum(
        constant + per_host * n_hosts + per_rank * n_ranks
        for constant, per_host, per_rank in (law[kind] for kind in KINDS)
    )


def _draw(rows: Sequence[Row], path: Path) -> None:
    panels = {"counted to 128 ranks, by the laws beyond": rows}
    draw_lines(path, panels, "ranks", "calls", "ranks", "calls of MPI per iteration")


def _claims(rows: Sequence[Row], modelled_us: Mapping[str, Mapping[str, Any]]) -> Iterator[Claim]:
    most = max(int(row["ranks"]) for row in rows)
    calls = {
        step: [float(row["calls"]) for row in rows if row["method"] == step]
        for step in STEPS.values()
    }
    of_ranks = [step for key, step in STEPS.items() if key != "plan"]
    yield Claim(
        "Growth (ours)",
        "calls of MPI of an executing rank per iteration do not grow with the ranks of the job",
        "-",
        "; ".join(f"{step}: {max(calls[step]):g}" for step in of_ranks),
        all(len(set(calls[step])) == 1 for step in of_ranks),
        f"counted on 2 to 128 ranks, by a law to {most:,}",
    )
    planner_ms = 1e-3 * float(modelled_us[str(most)]["planner, per iteration it plans"])
    n_hosts = most // RANKS_PER_HOST
    accesses = max(calls[STEPS["plan"]])
    yield Claim(
        "Growth (ours)",
        "accesses of a planner grow with the hosts, not with the ranks",
        "-",
        f"{accesses:,.0f} to {n_hosts - 1:,} other hosts of {most:,} ranks; {planner_ms:.0f} ms",
        accesses <= 3 * n_hosts,
        "times are modelled with those of single accesses over InfiniBand; no cluster was tried",
    )
