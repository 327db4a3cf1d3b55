"""`dynapipe-hpc demo-corpus`, `preprocess` and `inspect` as they are called."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import pytest
from tests.jobs.command_line import run_command, run_python

from dynapipe_hpc.cli.progress import share_progress

MAIN = "import sys; from dynapipe_hpc.cli.main import main; sys.exit(main())"


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-c", MAIN, *map(str, arguments)]


def call(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run_command(*command(*arguments))


def test_a_tokenizer_of_a_folder_is_read_without_torch(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"inputs": "a", "targets": "b"}\n')
    words = ["preprocess", tmp_path / "x.jsonl", tmp_path / "x.h5", "--workers", "1"]
    words += ["--tokenizer", "configs/demo_finetune/tokenizer"]
    program = MAIN.replace("sys.exit(main())", "main(); print(sys.modules['torch'])")
    made = run_python(program, *words)
    assert made.stdout.splitlines()[-1] == "None"
    assert made.stderr == ""


def test_a_demo_corpus_becomes_a_dataset(tmp_path: Path) -> None:
    corpus, dataset = tmp_path / "d.jsonl", tmp_path / "d.h5"
    made = call("demo-corpus", corpus, "--samples", "50", "--max-bytes", "512")
    assert (made.stdout, made.stderr) == (f"{corpus}: 50 samples\n", "")
    again = call("demo-corpus", corpus, "--samples", "1")
    assert (again.returncode, len(corpus.read_text().splitlines())) == (2, 50)
    assert f"{corpus}: already exists" in again.stderr
    written = call("preprocess", corpus, dataset, "--workers", "1")
    assert written.stdout.startswith(f"{dataset}: 50 samples, ")
    assert (written.returncode, written.stderr) == (0, "")
    shown = call("inspect", dataset)
    assert "samples    50 of " in shown.stdout
    assert (shown.returncode, shown.stderr) == (0, "")


def test_progress_starts_no_thread_that_would_take_signals() -> None:
    """While a worker starts, they are held back from the main thread, but not from others."""
    before = threading.enumerate()
    with share_progress("preprocess"):
        assert set(threading.enumerate()) <= set(before)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 128 + signal.SIGTERM)]
)
def test_an_interrupted_run_leaves_no_half_file(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """A terminal sends the signal to all processes of the run, workers included."""
    source = tmp_path / "endless.jsonl"
    os.mkfifo(source)
    process = subprocess.Popen(
        command("preprocess", source, tmp_path / "x.h5", "--workers", "2"),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    # Opening waits until the run reads, which it does with the output begun.
    feeder = threading.Thread(target=feed, args=(source.open("w"),), daemon=True)
    feeder.start()
    assert len(list(tmp_path.iterdir())) == 2
    os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=30)
    feeder.join(timeout=30)
    assert process.returncode == code
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize("limit_bytes", [100, 3000, 20_000])
@pytest.mark.parametrize("verb", ["demo-corpus", "preprocess"])
def test_a_full_disk_is_one_message_and_leaves_nothing(
    tmp_path: Path, verb: str, limit_bytes: int
) -> None:
    """Files may not grow above a limit, which is what programs see of a full disk."""
    source = tmp_path / "a.jsonl"
    source.write_text('{"inputs": "a", "targets": "b"}\n' * 20_000)
    inputs = [source] if verb == "preprocess" else []
    limited = command(verb, *inputs, tmp_path / "x")
    limits = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit_bytes},) * 2); "
    limited[2] = limits + limited[2]
    ended = run_command(*limited)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == (
        f"dynapipe-hpc: {tmp_path / 'x'}: cannot be written: File too large"
    )
    assert "Traceback" not in ended.stderr
    assert list(tmp_path.iterdir()) == [source]


def feed(pipe: TextIO) -> None:
    with suppress(BrokenPipeError), pipe:
        while True:
            pipe.write('{"inputs": "a", "targets": "b"}\n' * 1000)
