"""The view of a run that executes: what it says, also of damaged or unfinished files."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.examples.example_runs import record, write_run

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.run.explain_run import live_view
from dynapipe_hpc.report.run_folder import iterations_file


def with_losses(folder: Path, losses: list[float]) -> Path:
    """A run of 40 iterations, of which some were done; at most the first two were traced."""
    write_run(folder, len(losses), n_traced=2)
    file = iterations_file(folder)
    file.begin()
    for k, loss in enumerate(losses):
        file.add(record(k, loss=loss, tokens=1000 * k, seconds_left=90.0))
    return folder


def test_progress_numbers_and_the_last_traced_iteration_are_shown(tmp_path: Path) -> None:
    """Both ranks run F0 and B0 of 8 ms each; 72 ms in 84 letters, with two updates at the end."""
    _, progress, loss, speed, times, traced, *strips, _, _ = live_view(
        with_losses(tmp_path, [8.0, 1.0, float("nan"), 4.5])
    )
    assert (
        progress
        == "[####....................................] 4 of 40 iterations, 1m30 left, 3.00k tokens"
    )
    assert loss == "loss 4.5000 █▁ ▅"
    assert speed == "lr 1.00e-03, norm 1.5, 2.00k tok/s, 80 % real, bubble 25%"
    assert times.startswith(
        "iteration 500 ms, predicted 450 ms, longest trip 20%; 2 plans ahead; activations at most"
    )
    assert "iteration 1," in traced
    letters = [re.sub(r"(.)\1+", r"\1", strip.partition("|")[2]) for strip in strips]
    assert letters == [".0.au|", ".0a.u|"]
    assert all(len(strip) <= 100 for strip in (progress, loss, speed, times, traced, *strips))


def test_a_run_without_an_iteration_says_so(tmp_path: Path) -> None:
    assert live_view(with_losses(tmp_path, []))[1] == "no iteration is done yet"


def test_a_line_that_is_being_written_is_not_yet_read(tmp_path: Path) -> None:
    folder = with_losses(tmp_path, [3.0, 2.0])
    with (folder / "iterations.jsonl").open("a") as file:
        file.write('{"iteration": 2')
    assert "2 of 40" in live_view(folder)[1]


@pytest.mark.parametrize("line", ["nonsense", "{}", "[]", json.dumps({"iteration": 1})])
def test_damage_is_named(tmp_path: Path, line: str) -> None:
    folder = with_losses(tmp_path, [3.0])
    with (folder / "iterations.jsonl").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(InputError, match=r"iterations\.jsonl: one of its last lines: "):
        live_view(folder)


def test_a_terminal_is_left_as_it_was(tmp_path: Path) -> None:
    """On a real terminal: drawn on the other screen until Ctrl-C, then printed on the first."""
    folder = with_losses(tmp_path / "run", [3.0, 2.0])
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "dynapipe_hpc", "watch", str(folder), "--every", "0.1"]
    with subprocess.Popen(command, stdout=slave, start_new_session=True) as watch:
        os.close(slave)
        shown = b""
        while shown.count(b"\x1b[H") < 2:
            shown += os.read(master, 1 << 16)
        watch.send_signal(signal.SIGINT)
        assert watch.wait(20) == 0
    shown += os.read(master, 1 << 16)
    os.close(master)
    before, _, after = shown.rpartition(b"\x1b[?1049l")
    assert before.startswith(b"\x1b[?1049h\x1b[H")
    assert b"2 of 40 iterations" in after
    assert b"\x1b" not in after
