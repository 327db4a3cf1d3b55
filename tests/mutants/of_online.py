"""Mistakes in costs that a run corrects."""

from tests.mutants.mutant import Mutant

CORRECTED = ("tests/planner/cost/test_corrected_cost.py",)
TIMES = ("tests/planner/cost/test_pass_times.py",)
MEASURED = ("tests/experiment/run/test_online_costs.py",)
ONLINE_COSTS = ("tests/experiment/run/test_online_costs.py",)
SLOW_RANKS = ("tests/experiment/run/test_online_costs.py",)

ONLINE = (
    Mutant("planner/cost/corrected_cost.py", "backward_ms=gradient_ms * factors[:, Timed.GRADIENT]",
           "backward_ms=gradient_ms * factors[:, Timed.GRADIENT] * factors[:, Timed.WEIGHT]",
           "gradients of inputs have both factors", CORRECTED),
    Mutant("planner/cost/corrected_cost.py", "where=np.isfinite(weight_ms),",
           "where=True,", "what cannot run takes no number of ms", CORRECTED),
    Mutant("planner/cost/corrected_cost.py", "corrections.factors[layout, recompute]",
           "corrections.factors[Layout.PADDED, recompute]",
           "packed rows have the factors of padded ones", CORRECTED),
    Mutant("planner/choose/schedule_replicas.py", "replica.costs.slowed(np.array(slowness))",
           "replica.costs", "a slow replica is predicted to be fast", CORRECTED),
    Mutant("planner/choose/best_of_search.py", "slowness.max(axis=1)", "np.ones(n_replicas)",
           "a slow replica gets as much work", CORRECTED),
    Mutant("planner/cost/pass_times.py", "KEPT * self.predicted_ms + iteration.predicted_ms",
           "self.predicted_ms + iteration.predicted_ms", "what was predicted never fades", TIMES),
    Mutant("planner/cost/pass_times.py",
           "measured_ms = np.minimum(measured_ms, most_ms)", "pass",
           "a stall is taken for a slow machine", TIMES),
    Mutant("planner/cost/pass_times.py", "of_part * common_ms", "0 * common_ms",
           "rare modes seem fast", TIMES),
    Mutant("planner/cost/pass_times.py", "self.factors * fastest[:, None]", "self.factors",
           "the fastest replica is taken for the mean one", TIMES),
    Mutant("experiment/run/online_costs.py", "backward - weight + splitting", "backward",
           "half a backward pass is compared with a whole one", MEASURED),
    Mutant("experiment/run/online_costs.py", "microbatch.layout, microbatch.recompute, plan",
           "microbatch.layout, 0, plan", "recomputation is taken for slowness", MEASURED),
    Mutant("experiment/run/online_costs.py", "n_done = iteration - self._look_ahead\n",
           "n_done = min(iteration, self._n_done)\n",
           "plans depend on how far ahead the planner is", ONLINE_COSTS),
    Mutant("experiment/run/online_costs.py", "n_done - len(times) + 1, n_done + 1",
           "n_done - len(times), n_done", "a run goes on with costs of the wrong iterations",
           ONLINE_COSTS),
    Mutant("experiment/run/online_costs.py", "or plan.iteration == self._first", "",
           "what is done for the first time counts", ONLINE_COSTS),
    Mutant("experiment/run/online_costs.py", "np.where(is_slow, self._usual, USUAL",
           "np.where(False, self._usual, USUAL", "a rank that stays slow seems to recover",
           SLOW_RANKS),
    Mutant("experiment/run/online_costs.py", "np.minimum(self._usual, now.min(axis=0))",
           "self._usual", "a rank that was slow from the start is not named", SLOW_RANKS),
)  # fmt: skip
