"""Memory that ranks take to build their stages of a model on disk and to read their weights."""

from pathlib import Path

import pytest
from tests.examples.any_decoders import saved_decoder
from tests.jobs.command_line import finish_program

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MEGABYTE = 10**6
SIZES = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_hidden_layers": 8,
    "vocab_size": 32_000,
}
START = """
import sys
from pathlib import Path

import torch
from mpi4py import MPI

from dynapipe_hpc.job.process import keep_freed_memory
from dynapipe_hpc.models.family import family_of
from dynapipe_hpc.training.checkpoint.parts import whole_parts
from dynapipe_hpc.training.huggingface.origin import find_origin
from dynapipe_hpc.training.huggingface.read_weights import open_weights

rank, n_stages = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size


def memory(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(key))


def start(folder, family):
    origin = find_origin(Path(folder), family)
    n = origin.shape.n_layers // n_stages
    layers = range(rank * n, (rank + 1) * n)
    first, last = rank == 0, rank + 1 == n_stages
    stage = family_of(origin.shape)(origin.shape, layers, first=first, last=last)
    open_weights(origin, origin.shape).read(whole_parts(stage))
    return stage


keep_freed_memory()
small, large, family = sys.argv[1:]
start(small, family)  # loads all code
Path("/proc/self/clear_refs").write_text("5")  # a new peak
before = memory("VmRSS")
stage = start(large, family)
part = sum(weight.nbytes for weight in stage.parameters())
print(memory("VmHWM") - before, part, flush=True)
"""


@pytest.mark.parametrize("family", ["llama", "transformers"])
def test_a_start_takes_hardly_more_memory_than_the_rank_holds(family: str, tmp_path: Path) -> None:
    saved_decoder("llama", tmp_path / "small")
    saved_decoder("llama", tmp_path / "large", **SIZES)  # 0.5 GB in float64, half of it in float32
    job = finish_program(tmp_path, 2, START, "small", "large", family)
    assert job.returncode == 0, job.stderr
    ranks = [tuple(map(int, line.split())) for line in job.stdout.splitlines()]
    assert len(ranks) == 2
    for peak, part in ranks:
        assert part > 100 * MEGABYTE
        # Eight pieces of 16 MiB, in which weights are drawn and read, and what files have mapped.
        assert peak < part + 130 * MEGABYTE, f"{peak:,} bytes for {part:,} of weights"
