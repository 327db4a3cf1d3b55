"""Ranks that are ready to run verbs: most of a short run is the start of its ranks."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

PROGRAM = "tests.jobs.run_verbs"
END_S = 30.0


class ReadyRanks:
    """Ranks of mpiexec that stay when a verb ends, and run the next."""

    def __init__(self, launch: Sequence[str], environment: Mapping[str, str]) -> None:
        """Starts them with the words of a launcher, or one alone if there are none."""
        self.grown_bytes = 0  # by which a verb raised the peak of memory of the first rank
        self._folder = TemporaryDirectory()
        requests = Path(self._folder.name, "requests")
        os.mkfifo(requests)
        # To be read, too, so that opening it does not wait for them. They end when it is closed.
        self._requests = os.open(requests, os.O_RDWR)
        self._job = subprocess.Popen(
            [*launch, sys.executable, "-m", PROGRAM, self._folder.name],
            cwd=Path(__file__).parents[2],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def is_running(self) -> bool:
        """Whether the job has not ended, as it does if a rank fails alone."""
        return self._job.poll() is None

    def finish(self, folder: Path, words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        assert self._job.stdout is not None
        printed = [Path(self._folder.name, name) for name in ("out", "err")]
        for path in printed:
            path.write_text("")
        os.write(self._requests, json.dumps([str(folder), *words]).encode() + b"\n")
        try:
            code, *grown = (self._job.stdout.readline() or f"{self._job.wait()}").split()
        except BaseException:  # such as a test's limit of time
            self._kill()
            raise
        self.grown_bytes = sum(map(int, grown))
        out, err = (path.read_text(errors="replace") for path in printed)
        return subprocess.CompletedProcess(words, int(code), out, err)

    def close(self) -> None:
        """Lets them end, if they have not."""
        was_running = self.is_running
        os.close(self._requests)
        try:
            self._job.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            self._kill()
        self._folder.cleanup()
        assert not was_running or self._job.returncode == 0, self._job.returncode

    def _kill(self) -> None:
        """Ends the launcher, which ends the ranks."""
        self._job.terminate()
        try:
            self._job.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            self._job.kill()
            self._job.communicate()
