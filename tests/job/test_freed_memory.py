"""Freed memory that a process keeps, by the page faults of later allocations."""

import resource

from dynapipe_hpc.job.freed_memory import keep_freed_memory

N_BYTES = 80 << 20  # more than the largest threshold for blocks that are always mapped anew
N_TIMES = 10


def page_faults() -> int:
    """Page faults of filling and freeing a large and a small block again and again."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(N_TIMES):
        large, small = b"x" * N_BYTES, b"x" * (N_BYTES // 8)
        del large, small
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_pages_are_cleared_once() -> None:
    assert keep_freed_memory()
    n_pages = N_TIMES * N_BYTES // resource.getpagesize()
    assert page_faults() < 0.2 * n_pages
