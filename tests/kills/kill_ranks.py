"""Kills a random rank of a run at a random moment, starts it again, and so on to its end.

    python -m tests.kills.kill_ranks 20 --seed 1 [--json OUT.json]

Runs are repeated until there were so many kills. Each must end with the weights of a run that
nothing happened to, bit for bit, and no process may outlive a job for long.
"""

import argparse
import json
import random
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.examples.checkpoint_weights import different, load_weights
from tests.jobs.command_line import write_job_files
from tests.jobs.real_job import RUN, real_job

from dynapipe_hpc.job.machine import machine_facts

N_RANKS, N_ITERATIONS = 4, 40
SETTINGS = ("--set", f"training.iterations={N_ITERATIONS}", "--set", "checkpoint.every=3")
ITERATION, MAX_ITERATIONS = " left, loss ", 15
MAX_START_S, MAX_RUN_S, MAX_END_S = 10.0, 600.0, 60.0


@dataclass(frozen=True)
class Kill:
    """Consequence of one kill."""

    run: int
    rank: int
    n_iterations: int
    end_s: float
    message: str


def kill_ranks(folder: Path, n_kills: int, seed: int) -> list[Kill]:
    """Kills so many ranks; raises if a run ends other than it should."""
    draw = random.Random(seed)  # noqa: S311 - no secrets
    _finish(folder, "undisturbed")
    kills: list[Kill] = []
    for run in count():
        kills += _killed_run(folder, run, draw, n_kills - len(kills))
        _check_same(folder, f"run {run}")
        if len(kills) == n_kills:
            return kills
    raise AssertionError


def _killed_run(folder: Path, run: int, draw: random.Random, n_kills: int) -> Iterator[Kill]:
    """Starts a run until it comes to its end, killing it at most `n_kills` times."""
    for _ in range(n_kills):
        kill = _start_and_kill(folder, run, draw)
        if kill is None:
            return
        print(kill, flush=True)
        yield kill
    _finish(folder, f"run {run}")


def _start_and_kill(folder: Path, run: int, draw: random.Random) -> Kill | None:
    """Returns nothing if the job was done by then."""
    rank, n_wanted = draw.randrange(N_RANKS), draw.randrange(MAX_ITERATIONS)
    # Without an iteration somewhere in the start, else somewhere in the next iteration.
    later_s = draw.uniform(0, 0.2 if n_wanted else MAX_START_S)
    with real_job(folder, N_RANKS, *RUN, *SETTINGS, "-o", f"run {run}") as job:
        while job.process.poll() is None and job.out().count(ITERATION) < n_wanted:
            time.sleep(0.01)
        with suppress(subprocess.TimeoutExpired):
            job.process.wait(later_s)
        n_iterations = job.out().count(ITERATION)
        killed_s = time.monotonic()
        is_killed = job.kill_rank(rank)
        ended = job.wait(MAX_END_S)
        end_s = time.monotonic() - killed_s
    if not is_killed:
        assert ended.exit_code == 0, ended.err
        return None
    return Kill(run, rank, n_iterations, end_s, " ".join(ended.messages))


def _finish(folder: Path, name: str) -> None:
    with real_job(folder, N_RANKS, *RUN, *SETTINGS, "-o", name) as job:
        ended = job.wait(MAX_RUN_S)
    assert ended.exit_code == 0, ended.err


def _check_same(folder: Path, name: str) -> None:
    found, expected = (
        load_weights(folder / run / "checkpoints" / f"{N_ITERATIONS:06d}")
        for run in (name, "undisturbed")
    )
    others = different(found, expected)
    assert others == [], f"{name} ended with other weights: {others}"


def summary(kills: list[Kill]) -> dict[str, float]:
    """Times from a kill to the end of all processes."""
    times_s = [kill.end_s for kill in kills]
    return {
        "kills": len(kills),
        "runs": len({kill.run for kill in kills}),
        "median_end_s": statistics.median(times_s),
        "longest_end_s": max(times_s),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kills", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with TemporaryDirectory() as name:
        write_job_files(Path(name))
        kills = kill_ranks(Path(name), arguments.kills, arguments.seed)
    found = summary(kills)
    print("all runs ended with the same weights;", found)
    if arguments.json:
        facts = {"machine": machine_facts(N_RANKS), "seed": arguments.seed, "summary": found}
        text = json.dumps({**facts, "kills": list(map(asdict, kills))}, indent=1)
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
