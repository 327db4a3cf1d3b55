"""Freed memory that a process keeps, by the page faults of later allocations."""

import marshal
import subprocess
import sys
from importlib.util import find_spec

MODULE = "dynapipe_hpc.job.process"
IN_A_NEW_PROCESS = """
import marshal, resource, sys
exec(marshal.loads(sys.stdin.buffer.read()))
assert keep_freed_memory()
n_bytes, n_times = 80 << 20, 10  # more than the threshold for what is always mapped anew
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(n_times):
    large, small = b"x" * n_bytes, b"x" * (n_bytes // 8)
    del large, small
n_faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(n_faults * resource.getpagesize() / (n_times * n_bytes))
"""


def test_pages_are_cleared_once() -> None:
    # The heap of a process that has run other tests may have no room to grow.
    spec = find_spec(MODULE)
    assert spec is not None
    loader = spec.loader
    code = marshal.dumps(loader.get_code(MODULE))  # type: ignore[union-attr]
    command = [sys.executable, "-c", IN_A_NEW_PROCESS]
    found = subprocess.run(command, input=code, capture_output=True, check=True)
    assert float(found.stdout) < 0.2
