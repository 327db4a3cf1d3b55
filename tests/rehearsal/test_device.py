"""Reports of the device of a rehearsal, from torch for CUDA, once `make gpu-rehearsal` has it."""

import json
from pathlib import Path

import pytest
from tests.jobs.command_line import run_python
from tests.rehearsal.mistakes import MISTAKES, Mistake

REPOSITORY = Path(__file__).parents[2]
BUILT = REPOSITORY / "build" / "rehearsal"
built = pytest.mark.skipif(
    not (BUILT / "libraries").is_dir(), reason="needs make gpu-rehearsal, which downloads torch"
)
START = """\
import ctypes, json, torch
from tests.rehearsal.watched_rank import DEVICE, Accesses, Failures
DEVICE.rehearsal_own_device(0)
failures = Failures()
x, side = torch.zeros(1000, device="cuda"), torch.cuda.Stream()
y = torch.zeros(1000, device="cuda")
torch.cuda.synchronize()
"""
END = "\nDEVICE.rehearsal_iteration(0)\nprint(json.dumps(failures.n_of_kind))\n"
ON_SIDE = "with torch.cuda.stream(side):\n    y.copy_(x)\n"


def failures_of(program: str) -> list[str]:
    """Kinds of failures that a program makes, with a tensor x, a stream beside, and a tensor y."""
    done = run_python(
        START + program + END,
        folder=REPOSITORY,
        variables={
            "LD_LIBRARY_PATH": str(BUILT / "libraries"),
            "LD_PRELOAD": str(BUILT / "libraries" / "librehearsal.so"),
            "PYTHONPATH": f"{BUILT / 'torch'}:{REPOSITORY}",
            "REHEARSAL_DEVICES": "2",
        },
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.splitlines()[-1]))


@built
@pytest.mark.parametrize(
    ("program", "failure"),
    [
        ("DEVICE.rehearsal_iteration(1)\nx += 1\nx.sum().item()", "host waits in an iteration"),
        ("DEVICE.rehearsal_reserved(1)\ntorch.empty(1 << 28, device='cuda')",
         "allocation after memory was reserved"),
        ("torch.zeros(1, device='cuda:1')", "foreign context"),
        ("DEVICE.rehearsal_reserved(1)\nmade = ctypes.c_void_p()\n"
         "DEVICE.ncclCommInitRankScalable(ctypes.byref(made), 2, 0, 1, None, None)",
         "late communicator"),
        (f"with Accesses():\n    x.add_(1)\n    {ON_SIDE.replace(chr(10), chr(10) + '    ')}",
         "race"),
        (f"with Accesses():\n    {ON_SIDE.replace(chr(10), chr(10) + '    ')}x.add_(1)", "race"),
    ],
)  # fmt: skip
def test_what_a_gpu_forbids_is_reported(program: str, failure: str) -> None:
    assert failures_of(program) == [failure]


@built
@pytest.mark.parametrize(
    "program",
    [
        "DEVICE.rehearsal_iteration(1)\nx += 1",
        "x.sum().item()",
        "DEVICE.rehearsal_reserved(1)\nx + 1",
        "with Accesses():\n    x.add_(1)\n    side.wait_stream(torch.cuda.current_stream())\n"
        "    with torch.cuda.stream(side):\n        y.copy_(x)\n"
        "    torch.cuda.current_stream().wait_stream(side)\n    x.add_(1)",
    ],
)
def test_what_it_allows_is_not(program: str) -> None:
    assert failures_of(program) == []


@built
def test_a_snapshot_pins_as_much_as_it_holds() -> None:
    program = """
from dynapipe_hpc.training.checkpoint.parts import _room
from tests.rehearsal.watched_rank import counts_of_device
room = _room(torch.empty((1 << 20) + 1, device="cuda"))
assert room.is_pinned()
assert counts_of_device()["registered bytes"] == room.nbytes
assert "pinned allocation" not in counts_of_device()
assert not len(_room(torch.empty(0, device="cuda")))
"""
    assert failures_of(program) == []


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.mutant.why)
def test_mistakes_change_sources_as_they_are(mistake: Mistake) -> None:
    assert mistake.mutant.changed_source()
