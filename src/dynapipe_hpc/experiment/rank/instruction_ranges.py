"""Ranges of instructions, as profilers of torch and GPUs show them (NVTX)."""

from contextlib import ExitStack

from torch import cuda
from torch.profiler import record_function

from dynapipe_hpc.executor.progress import Progress
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.plan.text import symbol


class InstructionRanges:
    """A `Progress` that opens a range per instruction, named as in plans and traces.

    torch's profiler records it. On GPUs it is an NVTX range, too, which Nsight Systems shows above
    the kernels that are launched in it.
    """

    def __init__(self, plan: RankPlan, progress: Progress, *, nvtx: bool) -> None:
        """Marks the instructions of `plan` and tells `progress` of them; `nvtx` on GPUs."""
        self._names = [symbol(instruction) for instruction in plan.instructions]
        self._progress, self._nvtx = progress, nvtx
        self._open = ExitStack()

    def reach(self, index: int, before: object) -> None:
        """Ends the range of the instruction before `index`, and begins that of `index`, if any."""
        self._progress.reach(index, before)
        self._open.close()
        if index == len(self._names):
            return
        if self._nvtx:
            self._open.enter_context(cuda.nvtx.range(self._names[index]))
        self._open.enter_context(record_function(self._names[index]))
