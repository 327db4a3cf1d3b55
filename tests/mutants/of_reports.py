"""Mistakes in reports and in what they are made from."""

from tests.mutants.mutant import Mutant

SHARES = ("tests/report/test_work_shares.py",)
TIMES = ("tests/report/test_time_use.py",)
GAIN = ("tests/report/test_gain.py",)
COMPARISON = ("tests/report/test_comparison.py",)
OUTLIER = ("tests/planner/schedule/test_outlier.py",)
METRICS = ("tests/report/test_metrics.py",)
LOG = ("tests/experiment/run/test_run_log.py",)
TRACKERS = ("tests/experiment/run/test_trackers.py",)
ENDS = ("tests/experiment/run/test_explain_run.py",)
DRAWINGS = ("tests/report/test_plan_drawings.py",)
REQUEST = ("tests/experiment/run/test_trace_request.py",)
RECORD = ("tests/experiment/run/test_record.py",)

REPORTS = (
    Mutant("report/work_shares.py", "float(in_rows.pairs - alone.pairs)", "float(in_rows.pairs)",
           "attention within documents counts as across them", SHARES),
    Mutant("report/work_shares.py", "if microbatch.layout is Layout.PACKED:", "if False:",
           "packed rows attend across documents", SHARES),
    Mutant("report/work_shares.py", "(backward + recomputed)",
           "(forward + recomputed)", "a backward pass is as long as a forward pass", SHARES),
    Mutant("report/work_shares.py", "rest = 1 - again", "rest = 1",
           "shares of a recomputed pass are more than the whole", SHARES),
    Mutant("report/work_shares.py", "work, count = part.work.forward, held[kind]",
           "work, count = part.work.forward, 1", "parts count on stages without them", SHARES),
    Mutant("report/work_shares.py", "(plan.replica, *held[plan.stage].values())",
           "(*held[plan.stage].values(),)", "replicas have the shares of the first", SHARES),
    Mutant("report/work_shares.py", "(plan.replica, *held[plan.stage].values())",
           "(plan.replica,)", "stages have the shares of the first", SHARES),
    Mutant("report/rank_time.py", "min(max(bar.start_ms, ready_ms), bar.end_ms)", "bar.start_ms",
           "waiting for a busy rank counts as a transfer", TIMES),
    Mutant("report/rank_time.py", "0 if bar.label == STEP else bar.rank % n_stages",
           "bar.rank % n_stages", "the step waits for one stage only", TIMES),
    Mutant("report/rank_time.py", "0 if bar.label == STEP else bar.rank % n_stages", "0",
           "the reduction waits for all stages", TIMES),
    Mutant("report/trace_file.py", "send.rank, number, _us", "wait.rank, number, _us",
           "arrows begin where they end", ("tests/report/test_trace_file.py",)),
    Mutant("report/timeline.py", "case Backward(microbatch) | BackwardWeight(microbatch):",
           "case Backward(microbatch) | BackwardInput(microbatch):",
           "activations are counted until the first half of a backward pass",
           ("tests/report/test_timeline.py",)),
    Mutant("report/rank_time.py", "(Use.BUBBLE, until_ms - end_ms)", "(Use.BUBBLE, 0.0)",
           "idling at the end is no bubble", TIMES),
    Mutant("report/rank_time.py", "max(measured_ms, waited_ms + timeline.measured_ms)",
           "timeline.measured_ms", "waiting for plans takes no time", TIMES),
    Mutant("report/time_use.py", "steady or traced", "traced",
           "the warm-up counts", TIMES),
    Mutant("report/time_bars.py", "100 * time_ms / longest_ms", "100 * times.share(use)",
           "every bar has a scale of its own", TIMES),
    Mutant("report/gain.py", "if i != subject", "", "a run is compared with itself", GAIN),
    Mutant("report/gain.py", "other.real_tokens / own.real_tokens / other.iteration_ms",
           "1 / other.iteration_ms", "times are compared whatever the tokens", GAIN),
    Mutant("report/comparison.py", "has_measured_costs(its) and run", "run",
           "estimated costs make a run look disturbed", COMPARISON),
    # outliers
    Mutant("planner/schedule/outlier.py", "self.chain_ms - self.busy_ms", "self.chain_ms",
           "the time that ranks are busy anyway counts as added", OUTLIER),
    Mutant("planner/schedule/outlier.py", "np.mean([timeline", "np.max([timeline",
           "the busiest rank stands for all", OUTLIER),
    Mutant("planner/schedule/outlier.py", "works_ms[:, index].argmin()",
           "works_ms[:, index].argmax()", "a sample runs in its slowest mode", OUTLIER),
    Mutant("planner/schedule/outlier.py", "<= outlier.added_ms < np.inf", "<= outlier.added_ms",
           "a sample that was not measured adds all time", OUTLIER),
    Mutant("planner/schedule/outlier.py",
           "sorted({m.layout for pipeline in pipelines for m in pipeline.microbatches})", "[1, 2]",
           "costs of layouts that no plan has", OUTLIER),
    Mutant("planner/schedule/outlier.py", "0.0).argmax()", "0.0).argmin()",
           "the shortest sample is the outlier", OUTLIER),
    Mutant("planner/schedule/outlier.py", "tuple(PassKind) if splits else",
           "(PassKind.FORWARD, PassKind.BACKWARD) if splits else",
           "its backward passes are whole where others are split", OUTLIER),
    Mutant("experiment/run/record.py", "if plan.stage == 0 and first_shard else ()",
           "if plan.stage == 0 else ()", "every shard counts its stage's micro-batches", RECORD),
    Mutant("experiment/run/record.py", "(ends_ms - starts_ms)[are_passes]", "(ends_ms - starts_ms)",
           "transfers and waits are no bubble", RECORD),
    # metrics
    Mutant("report/metrics_file.py", "if k < n_kept", "if k <= n_kept",
           "a resumed run repeats an iteration", METRICS),
    Mutant("report/metrics.py", "number if math.isfinite(number) else None", "number",
           "metrics that are no JSON", METRICS),
    Mutant("report/run_folder.py", "for name in (METRICS, EVALUATIONS, TRACE, ENDED)",
           "for name in (EVALUATIONS, TRACE, ENDED)", "metrics of a replaced run stay", METRICS),
    Mutant("experiment/run/run_log.py", "return is_end or is_skipped or", "return is_end or",
           "a skipped update is not printed", LOG),
    Mutant("experiment/run/pace.py", "self._tokens += record.real_tokens",
           "self._tokens = record.real_tokens", "tokens of one iteration count as all", LOG),
    Mutant("experiment/run/track/trackers.py", "if math.isfinite(number)", "if True",
           "trackers get numbers that are none", TRACKERS),
    Mutant("experiment/run/track/trackers.py", "self._trackers.remove(tracker)", "pass",
           "a tracker that failed is asked again and again", TRACKERS),
    Mutant("experiment/run/track/trackers.py", "self._waiting.put_nowait(", "self._waiting.put(",
           "training waits for a tracker", TRACKERS),
    Mutant("experiment/run/trace_request.py", "return max(first, iteration), last",
           "return first, last", "iterations that are over are traced", REQUEST),
    Mutant("experiment/run/trace_request.py", "self._path.unlink()", "pass",
           "a request is taken again and again", REQUEST),
    # drawings of plans
    Mutant("report/plan_strip.py", "(k + 0.5) * column_ms", "k * column_ms",
           "letters show the beginning of their time", DRAWINGS),
    Mutant("report/plan_page.py", "took_ms[plan.replica, each.step.microbatch] +=",
           "took_ms[plan.replica, each.step.microbatch] =", "the page shows the last pass only",
           ("tests/report/test_plan_drawings.py",)),
    Mutant("report/plan_svg.py", "math.floor(math.log10(until_ms / 2))", "0",
           "a short plan has no axis", DRAWINGS),
    Mutant("experiment/explain/what_sets_the_time.py", "longest = max(ids", "longest = min(ids",
           "the shortest sample sets the time", DRAWINGS),
    # ends
    Mutant("report/run_folder.py", "(path / ENDED).unlink(missing_ok=True)", "pass",
           "a resumed run has already ended", ENDS),
    Mutant("job/ending.py", "with suppress(InputError, RunError, OSError):", "if True:",
           "a disk that fails is the second message", ENDS),
    Mutant("job/ending.py", ".join(_UNTIL_RECORDED_S)\n\n    def _say", ".join()\n\n    def _say",
           "a disk that hangs keeps a job from ending", ENDS),
    Mutant("experiment/run/explain_run.py", "if holder.is_alive() or silent_s < PATIENCE_S:",
           "if True:", "a run of a host that failed still executes", ENDS),
)  # fmt: skip
