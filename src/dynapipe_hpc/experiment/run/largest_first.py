"""The largest micro-batches of the first plans, run once before training."""

from dataclasses import dataclass

from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.run.iteration import TakenPlan
from dynapipe_hpc.experiment.run.plans import Plans
from dynapipe_hpc.experiment.run.rank import Rank
from dynapipe_hpc.plan.instruction import Payload
from dynapipe_hpc.plan.rank_plan import RankPlan

MAX_SHAPES = 4
"""Most shapes that are run: together they take about as long as an iteration."""
_MB = 1e6


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A micro-batch of a plan, by its number."""

    taken: TakenPlan
    index: int

    @property
    def plan(self) -> RankPlan:
        return self.taken.plan

    @property
    def microbatch(self) -> MicroBatch:
        return self.plan.microbatches[self.index]

    @property
    def planned_bytes(self) -> int:
        """Memory that the plan counts on for it, while nothing else runs or is kept."""
        stored, *transient = (sizes[self.index] for sizes in self.plan.memory.sizes)
        return stored + max(transient)

    @property
    def shape(self) -> tuple[object, ...]:
        """Values that decide which kernels run, and on tensors of which sizes."""
        m = self.microbatch
        return m.layout, m.recompute, m.n_rows, m.row_tokens, m.target_tokens


def runs_largest_first(config: ExperimentConfig, *, on_gpus: bool) -> bool:
    """Whether a run on GPUs or processors begins with its largest micro-batches."""
    choice = config.executor.largest_first
    return choice == "on" or (choice == "auto" and on_gpus)


def run_largest_first(rank: Rank, plans: Plans, config: ExperimentConfig) -> str:
    """Runs the largest micro-batches of this rank's first plans, forward and backward, once.

    Weights stay as they are. The shards of a stage have equal plans, and so do the same together;
    with ranks of other stages or replicas this exchanges nothing.

    Returns a line that compares the memory used with the memory planned; empty if nothing was run.
    """
    first = plans.iterations[: config.store.look_ahead]
    limit_bytes = config.cluster.device_memory_bytes
    lines = [_run(rank, plans, each, limit_bytes) for each in _largest(plans.take_ahead(first))]
    return "largest micro-batches first: " + "; ".join(lines) if lines else ""


def _largest(plans: list[TakenPlan]) -> list[_Candidate]:
    candidates = [
        _Candidate(taken, index)
        for taken in plans
        for index, microbatch in enumerate(taken.plan.microbatches)
        if microbatch.slice is None
    ]
    candidates.sort(key=lambda each: each.planned_bytes, reverse=True)
    of_shape: dict[tuple[object, ...], _Candidate] = {}
    for each in candidates:
        of_shape.setdefault(each.shape, each)
    return list(of_shape.values())[:MAX_SHAPES]


def _run(rank: Rank, plans: Plans, each: _Candidate, limit_bytes: float) -> str:
    plan, microbatch = each.plan, each.microbatch
    plans.serve(each.taken)
    is_first = plan.stage == 0
    shape = None if is_first else plan.received_shape(each.index, Payload.ACTIVATION)
    try:
        used_bytes = rank.stage.run_alone(microbatch, shape, split_backward=plan.splits_backward)
    except MemoryError as error:
        reason = str(error).partition("\n")[0]
        raise _memory_error(rank.job.rank, each, reason, limit_bytes) from error
    return (
        f"{_describe(microbatch)} in {used_bytes / _MB:,.1f} MB "
        f"(planned {each.planned_bytes / _MB:,.1f})"
    )


def _describe(microbatch: MicroBatch) -> str:
    targets = f" + {microbatch.target_tokens}" if microbatch.target_tokens else ""
    return f"{microbatch.n_rows} x {microbatch.row_tokens}{targets} tokens"


def _memory_error(rank: int, each: _Candidate, reason: str, limit_bytes: float) -> RunError:
    samples = {sample.sample_id: sample for sample in each.taken.samples}
    members = [samples[i] for i in each.microbatch.sample_ids]
    longest = max(members, key=lambda sample: sample.tokens)
    return RunError(
        f"iteration {each.plan.iteration}, rank {rank}: micro-batch {each.index} of "
        f"{_describe(each.microbatch)}, whose longest sample is {longest.sample_id} with "
        f"{longest.tokens} tokens, does not fit into memory ({reason}), "
        f"though {each.planned_bytes / _MB:,.1f} MB were planned beside "
        f"{each.plan.memory.static / _MB:,.1f} MB of model: lower cluster.device_memory_bytes, "
        f"which is {limit_bytes / _MB:,.1f} MB, or data.max_tokens, or measure costs with "
        "'dynapipe-hpc profile'"
    )
