"""Runs of many configurations on GPUs that are not there; fails if a rank does what a GPU forbids.

    python -m tests.rehearsal.rehearse FOLDER [--json OUT.json] [WORDS]

FOLDER is that of `build`. With words, only configurations whose name has them. The host code is
that of GPUs, with torch's build for CUDA; kernels compute nothing, so losses are zeros.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tests.jobs.command_line import BIN, ROOT, write_job_files
from tests.rehearsal.mistakes import ENDS_WITH_AN_ERROR, MISTAKES
from tests.rehearsal.rehearsals import REHEARSALS, Rehearsal

from dynapipe_hpc.job.machine import machine_facts

REPOSITORY = Path(__file__).parents[2]
MAX_S = 240
RUN = ["run", "config.toml", "-o", "run"]


def main() -> int:
    """Runs the rehearsals one after the other; the exit code is 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder with torch and the built libraries")
    parser.add_argument("words", nargs="?", default="", help="only those whose name has this")
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument(
        "--mistakes", action="store_true", help="try whether each of a list of mistakes is noticed"
    )
    arguments = parser.parse_args()
    if arguments.mistakes:
        return try_mistakes(arguments.folder.resolve())
    results = {}
    for each in REHEARSALS:
        if arguments.words in each.name:
            results[each.name] = result = rehearse(each, arguments.folder.resolve())
            print(f"{each.name}: {describe(result)}", flush=True)
    if arguments.json:
        content = {"machine": machine_facts(1), "rehearsals": results}
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")
    return int(any(result["failures"] or result["exit_code"] for result in results.values()))


def try_mistakes(built: Path) -> int:
    """Whether every mistake is noticed by the failure that it is; 0 if so, otherwise 1."""
    n_missed = 0
    for number, mistake in enumerate(MISTAKES):
        (each,) = (each for each in REHEARSALS if each.name == mistake.rehearsal)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_job_files(folder, each.tables)
            ended = start(each, built, folder, RUN, REHEARSAL_MISTAKE=str(number))
            failures = merged(each, folder, ended)["failures"]
        if ended.returncode:
            failures[ENDS_WITH_AN_ERROR] = 1
        n_missed += mistake.failure not in failures
        print(f"{mistake.mutant}: {failures or 'NOT NOTICED'}", flush=True)
    return int(n_missed > 0)


def describe(result: dict[str, Any]) -> str:
    """A line on the results of a rehearsal, and what a rank did wrong."""
    lines = [f"  {kind}: {text}" for kind, texts in result["shown"].items() for text in texts]
    end = "" if not result["exit_code"] else f"; exit code {result['exit_code']}: {result['error']}"
    numbers = ", ".join(f"{kind} {n}" for kind, n in result["failures"].items()) or "no failure"
    host = f"{result['host_us_per_instruction']} us of host time per instruction"
    return "\n".join([f"{numbers}; {host}{end}", *lines])


def rehearse(each: Rehearsal, built: Path) -> dict[str, Any]:
    """Results of a configuration on all its ranks: failures, calls of the device, host time."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_job_files(folder, each.tables)
        if each.verb == "profile":
            return merged(
                each,
                folder,
                start(each, built, folder, ["profile", "config.toml", "-o", "costs.h5"]),
            )
        ended = start(each, built, folder, RUN)
        if each.resumes and not ended.returncode:
            ended = start(each, built, folder, [*RUN, "--set", "training.iterations=6"])
        result = merged(each, folder, ended)
        if not ended.returncode:
            # Once more without noting accesses, which takes time.
            shutil.rmtree(folder / "run")
            start(each, built, folder, RUN, REHEARSAL_TIMES="1")
            timed = merged(each, folder, ended)
            result["host_us_per_instruction"] = timed["host_us_per_instruction"]
            result["failures"] |= timed["failures"]
        return result


def start(
    each: Rehearsal, built: Path, folder: Path, words: list[str], **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Runs a verb on watched ranks, to the end."""
    (folder / "reports").mkdir(exist_ok=True)
    libraries = built / "libraries"
    environment = {
        **os.environ,
        **ROOT,
        "LD_LIBRARY_PATH": str(libraries),
        "LD_PRELOAD": str(libraries / "librehearsal.so"),
        "PYTHONPATH": f"{built / 'torch'}:{REPOSITORY}",
        "OMP_NUM_THREADS": "1",
        "REHEARSAL_DEVICES": str(each.n_devices or each.n_ranks),
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        **variables,
    }
    named = [word for name in environment if name not in os.environ for word in ("-x", name)]
    return subprocess.run(
        [
            *(str(BIN / "mpiexec"), "-n", str(each.n_ranks), *named),
            *(sys.executable, "-m", "tests.rehearsal.watched_rank", "reports", *words),
        ],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=MAX_S,
    )


def merged(
    each: Rehearsal, folder: Path, ended: "subprocess.CompletedProcess[str]"
) -> dict[str, Any]:
    reports = [json.loads(path.read_text()) for path in sorted((folder / "reports").iterdir())]
    shown: dict[str, list[str]] = {}
    for report in reports:
        for kind, texts in report["shown"].items():
            shown.setdefault(kind, []).extend(t for t in texts if t not in shown.get(kind, []))
    failures = sum((Counter(r["failures"]) for r in reports), Counter[str]())
    times = [report["host_us_per_instruction"] for report in reports]
    return {
        "exit_code": ended.returncode,
        "error": "\n".join(ended.stderr.splitlines()[-12:]) if ended.returncode else "",
        "failures": {kind: n for kind, n in failures.items() if kind not in each.allowed},
        "shown": {kind: texts for kind, texts in shown.items() if kind not in each.allowed},
        "counts": dict(sum((Counter(r["counts"]) for r in reports), Counter[str]())),
        "host_us_per_instruction": max(times, default=0.0),
    }


if __name__ == "__main__":
    sys.exit(main())
