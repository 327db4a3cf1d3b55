"""Runs verbs as they are asked for: `python -m tests.bad_input.serve`.

A process of its own may crash, hang or run out of memory. Every line of standard input is a
request, every line of standard output its answer, as JSON; what the verb prints goes into files.
"""

import json
import os
import resource
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import tests.bad_input.kernels  # noqa: F401, before the package loads its own

from dynapipe_hpc.cli.main import main

STREAMS = ("stdout", "stderr")


def serve(requests: IO[str], answers: IO[str], folder: Path) -> None:
    """Answers until the requests end; `folder` is where output goes."""
    for line in requests:
        request = json.loads(line)
        os.chdir(os.fsencode(request["folder"]))
        for number, name in enumerate(STREAMS, start=1):
            os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        answers.write(json.dumps(_answer(request["arguments"])) + "\n")
        answers.flush()


def _answer(arguments: Sequence[str]) -> dict[str, Any]:
    before = _peak_bytes()
    exit_code = _run([os.fsdecode(argument.encode("latin-1")) for argument in arguments])
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return {"exit_code": exit_code, "grown_bytes": _peak_bytes() - before}


def _run(arguments: Sequence[str]) -> int:
    try:
        return main(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)
    except BaseException:  # of any kind: it would have been a traceback
        traceback.print_exc()
        return 1


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    serve(sys.stdin, os.fdopen(os.dup(1), "w"), Path(sys.argv[1]))
