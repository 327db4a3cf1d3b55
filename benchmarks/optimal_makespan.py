"""The shortest schedule of a few micro-batches that there is, with a proof: constraint programming.

Needs the optional dependency of the benchmarks, `pip install dynapipe-hpc[benchmarks]`.
"""

from ortools.sat.python import cp_model

from dynapipe_hpc.planner.cost.cost_model import FloatArray, IntArray, StageCosts


class NotProvenError(Exception):
    """There was too little time for a proof."""


def optimal_makespan_ms(
    costs: StageCosts, limit_bytes: FloatArray, *, split: bool, hint_ms: float, limit_s: float = 120
) -> int:
    """Of all orders of passes on all stages, in any order of injection, the least makespan.

    Stages may wait on purpose, and micro-batches may overtake each other. Transfers take no time.

    Args:
        costs: In whole ms and bytes.
        limit_bytes: Shape (n_stages,).
        split: Whether backward passes are split.
        hint_ms: The makespan of a schedule that is known.
        limit_s: When to give up.

    Raises:
        NotProvenError: No proof in that time.
    """
    model = _Model(costs, limit_bytes, split, round(hint_ms))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_s
    solver.parameters.num_workers = 2
    if solver.solve(model.cp) != cp_model.OPTIMAL:
        raise NotProvenError
    return int(solver.value(model.makespan))


class _Model:
    """Passes as intervals; per stage, one at a time and no more memory than there is."""

    def __init__(
        self, costs: StageCosts, limit_bytes: FloatArray, split: bool, horizon_ms: int
    ) -> None:
        self.cp = cp_model.CpModel()
        self.costs, self.split, self.horizon_ms = costs, split, horizon_ms
        self.takes_ms = _takes_ms(costs, split)
        backward_bytes = costs.backward_transient_bytes
        self.transient_bytes = (costs.forward_transient_bytes, backward_bytes, backward_bytes)
        self.makespan = self.cp.new_int_var(0, horizon_ms, "makespan")
        stages, microbatches = range(costs.n_stages), range(costs.n_microbatches)
        kinds = range(len(self.takes_ms))
        self.ends = [
            [[self.cp.new_int_var(0, horizon_ms, "") for _ in kinds] for _ in stages]
            for _ in microbatches
        ]
        for s in stages:
            self._share_stage(s, limit_bytes[s])
        for i in microbatches:
            self._go_there_and_back(i)
        self.cp.minimize(self.makespan)

    def _start(self, i: int, s: int, kind: int) -> cp_model.LinearExpr:
        return self.ends[i][s][kind] - int(self.takes_ms[kind][i, s])

    def _share_stage(self, s: int, limit_bytes: float) -> None:
        running, keeping, bytes_kept = [], [], []
        for i in range(self.costs.n_microbatches):
            ends = self.ends[i][s]
            for kind, end in enumerate(ends):
                start, takes_ms = self._start(i, s, kind), int(self.takes_ms[kind][i, s])
                running.append(self.cp.new_interval_var(start, takes_ms, end, ""))
                keeping.append(running[-1])
                bytes_kept.append(int(self.transient_bytes[kind][i, s]))
            start = self._start(i, s, 0)
            kept_ms = self.cp.new_int_var(0, self.horizon_ms, "")
            keeping.append(self.cp.new_interval_var(start, kept_ms, ends[-1], ""))
            bytes_kept.append(int(self.costs.stored_bytes[i, s]))
            self.cp.add(self.makespan >= ends[-1])
        self.cp.add_no_overlap(running)
        if limit_bytes < sum(bytes_kept):
            self.cp.add_cumulative(keeping, bytes_kept, int(limit_bytes))

    def _go_there_and_back(self, i: int) -> None:
        last = self.costs.n_stages - 1
        for s in range(last):
            self.cp.add(self._start(i, s + 1, 0) >= self.ends[i][s][0])
            self.cp.add(self._start(i, s, 1) >= self.ends[i][s + 1][1])
        self.cp.add(self._start(i, last, 1) >= self.ends[i][last][0])
        self.cp.add(self._start(i, 0, 0) >= 0)
        for s in range(last + 1):
            for kind in range(2, len(self.takes_ms)):
                self.cp.add(self._start(i, s, kind) >= self.ends[i][s][kind - 1])


def _takes_ms(costs: StageCosts, split: bool) -> list[IntArray]:
    """Of each kind of pass, shape (n_microbatches, n_stages)."""
    parts = [costs.forward_ms, costs.backward_ms]
    if split:
        gradient_ms = costs.backward_ms - costs.weight_ms + costs.splitting_ms
        parts = [costs.forward_ms, gradient_ms, costs.weight_ms]
    return [part.round().astype("int64") for part in parts]
