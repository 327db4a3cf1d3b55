"""Freed memory that a process keeps, by the page faults of later allocations."""

import resource
import subprocess
import sys
from threading import current_thread, main_thread

from dynapipe_hpc.job.freed_memory import keep_freed_memory

N_BYTES = 80 << 20  # more than the largest threshold for blocks that are always mapped anew
N_TIMES = 10


def faults_per_page() -> float:
    """Page faults of filling and freeing a large and a small block again and again."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(N_TIMES):
        large, small = b"x" * N_BYTES, b"x" * (N_BYTES // 8)
        del large, small
    n_faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    return n_faults * resource.getpagesize() / (N_TIMES * N_BYTES)


def kept() -> float:
    assert keep_freed_memory()
    return faults_per_page()


def test_pages_are_cleared_once() -> None:
    # Ranks compute in the main thread; heaps of others are smaller than the large block.
    is_main = current_thread() is main_thread()
    found = kept() if is_main else in_another_process()
    assert found < 0.2


def in_another_process() -> float:
    command = [sys.executable, "-m", __name__]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


if __name__ == "__main__":
    print(kept())
