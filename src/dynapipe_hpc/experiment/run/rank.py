"""A rank of a run: its device, channels, stage and state, and the plans that it executes."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch

from dynapipe_hpc.data.dataset.dataset_file import Dataset
from dynapipe_hpc.data.dataset.long_samples import reader_of, trained_tokens_of
from dynapipe_hpc.data.errors import InputError, RunError
from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.executor.clock import HostClock
from dynapipe_hpc.executor.run import IterationTrace, Progress, launch_plan
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.rank.channels import connect
from dynapipe_hpc.experiment.rank.devices import RankDevice, build_module, clock_of, reserve_memory
from dynapipe_hpc.experiment.run.iteration import TakenPlan
from dynapipe_hpc.experiment.run.plans import Plans, check_same_plans
from dynapipe_hpc.experiment.run.resume import ResumePoint, check_share
from dynapipe_hpc.experiment.watch.rank_status import DeviceProgress, Phase, Position
from dynapipe_hpc.experiment.watch.watchdog import Watchdog
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.process import keep_freed_memory
from dynapipe_hpc.plan.codec import plans_hash
from dynapipe_hpc.plan.instruction import Payload
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.training.checkpoint.parts import CheckpointReader, StatePart, TrainingState
from dynapipe_hpc.training.huggingface.origin import Origin
from dynapipe_hpc.training.huggingface.read_weights import WEIGHT, open_weights
from dynapipe_hpc.training.module_stage import ModuleStage
from dynapipe_hpc.training.optimizer import Optimizer
from dynapipe_hpc.training.small_files import CARRIED, copy_small_files, write_token_ids
from dynapipe_hpc.training.tied_copies import tied_weights
from dynapipe_hpc.training.token_loader import TokenLoader


class Rank:
    """The layers of a rank's stage on its device, and its channels to other ranks.

    `reports_loss` says whether this rank knows the loss: it is the first shard of the last stage.
    `position` is the position that a watchdog reads while the rank is `watched`.
    """

    def __init__(self, job: Job, experiment: Experiment, on: RankDevice) -> None:
        """Builds the stage, with initial weights; all ranks together."""
        config, placement = experiment.config, experiment.placement
        self.job, self._experiment, self.device = job, experiment, on.device
        torch.set_num_threads(config.training.threads)
        keep_freed_memory()
        tied = tied_weights(config.model, placement, config.cluster.n_shards)
        self.channels = connect(config, tied, job, on)
        collectives = self.channels.collectives
        stage_number = config.cluster.stage_of(job.rank)
        # Nothing in it is collective. Some layers of a library cannot be trained.
        with job.fail_together():
            module = build_module(config, placement, stage_number, collectives, device=on.device)
            self._collate = module.collate
            self.loader = self.open_loader(experiment.dataset)
            shares_state = config.cluster.zero_stage == 1
            optimizer = Optimizer(
                module, config.training, collectives, shares_state=shares_state, tied=tied
            )
            self.state = TrainingState(module, optimizer, collectives)
            reserve_memory(on, config)
        # After the reservation: a stage's account of memory begins when it is made, and its first
        # peak would be the reserved block.
        self.stage: ModuleStage = ModuleStage(module, self.loader, optimizer)
        self.is_first_shard = collectives.shard == 0
        self.reports_loss = module.is_last and self.is_first_shard
        self.clock = clock_of(on.device)
        self.position = Position()
        self.progress: Progress = self.position

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:
            self.channels.close()  # collective, so not after an error

    def open_loader(self, dataset: Dataset) -> TokenLoader:
        """The loader of the tokens of a dataset, as this rank's stage takes them."""
        config = self._experiment.config
        predicts_inputs = not config.model.has_target_rows
        return TokenLoader(
            reader_of(dataset, config.data),
            dataset.header.start_id or 0,
            config.training.loss_weighting,
            self._collate,
            trained=trained_tokens_of(dataset, config.data, predicts_inputs=predicts_inputs),
        )

    def start_at(self, point: ResumePoint | None, output: Path) -> None:
        """Restores a checkpoint, or begins with the weights of `model.init_from`; all together.

        Every rank reads its own part only. If a checkpoint or the model cannot be used, the first
        rank says why.
        """
        job, state, config = self.job, self.state, self._experiment.config
        dataset, origin = self._experiment.dataset, self._experiment.origin
        counters = state.counters
        line = ""
        with job.fail_together():
            if point:
                reader = CheckpointReader(point.path, len(point.description.part_checksums))
                reader.fill(state.to_restore())
                counters = point.description.counters
            # Checkpoints lack what is frozen.
            if origin and (parts := state.frozen() + ([] if point else state.to_restore())):
                line = self._read_origin(origin, parts, output, resumed=point is not None)
            if job.is_first:
                # After the small files of the model, to which ids are added.
                write_token_ids(
                    output, config.model, dataset.header.start_id, dataset.header.end_ids
                )
        if origin and origin.description and config.training.init_optimizer and not point:
            counters = replace(counters, n_updates=origin.description.counters.n_updates)
        if point or origin:
            state.resume(counters)
        if line:
            job.say(line)

    def _read_origin(
        self, origin: Origin, parts: list[StatePart], output: Path, *, resumed: bool
    ) -> str:
        """Reads parts of the initial model; for a new run, returns a line about it.

        The small files of Hugging Face that belong to the model are copied into the run folder,
        from where checkpoints take them.
        """
        job, config = self.job, self._experiment.config
        with_optimizer = config.training.init_optimizer and not resumed
        parts = [each for each in parts if with_optimizer or each.name.startswith(WEIGHT)]
        if origin.description is not None:
            check_share(origin.folder, job)
        weights = open_weights(origin, config.model, compares_copies=job.is_first)
        if any(not p.name.startswith(WEIGHT) and not weights.has(p.name) for p in parts):
            raise InputError(
                f"{origin.folder}: has no state of AdamW; leave training.init_optimizer out"
            )
        if job.is_first and origin.small_files is not None:
            copy_small_files(origin.small_files, output / CARRIED)
        weights.read(parts)
        if resumed:
            return ""
        also = " and the state of the optimizer" if with_optimizer else ""
        rows, theirs = config.model.max_tokens, origin.shape.max_tokens
        longer = f", with rows of up to {rows:,} tokens, not {theirs:,}" * (rows > theirs)
        return f"{output}: begins with the weights{also} of {origin}{longer}"

    @contextmanager
    def watched(self, run: Path) -> Iterator[None]:
        """Ends the job if this rank or another on its host hangs or dies in the block (collective).

        Files in the run folder say where ranks hang.
        """
        with Watchdog(self.job, self._experiment.config, run) as watchdog:
            self.position = watchdog.position
            progress: AbstractContextManager[Progress] = nullcontext(self.position)
            if not isinstance(self.clock, HostClock):
                progress = DeviceProgress(self.position, self.clock.has_passed)
            with progress as self.progress:
                yield

    def execute(self, iteration: int, plans: Plans) -> tuple[TakenPlan, IterationTrace]:
        """Takes the plan of an iteration and executes it; all ranks together."""
        self.position.enter(Phase.WAITS_FOR_PLAN, iteration)
        taken = plans.take(iteration)
        self.position.enter(Phase.COMPARES_PLANS, iteration)
        # Collective, before the first instruction: other plans would deadlock.
        check_same_plans(self.job, iteration, plans_hash(taken.data))
        self.position.start_plan(iteration, taken.plan)
        trace = self._execute(taken.plan, plans)
        self.position.enter(Phase.REPORTS, iteration)
        return taken, trace

    def run_forward(self, iteration: int, plan: RankPlan) -> None:
        """Executes a plan of forward passes, without preparing another; all ranks together."""
        self.position.start_plan(iteration, plan)
        transport = self.channels.transport
        launch_plan(plan, self.stage, transport, self.clock, progress=self.progress).finish()

    def _execute(self, plan: RankPlan, plans: Plans) -> IterationTrace:
        transport = self.channels.transport
        plans.quiet_period.end()
        launched = launch_plan(plan, self.stage, transport, self.clock, progress=self.progress)
        if not launched.is_busy:
            plans.quiet_period.begin()
        if plan.iteration + 1 < plans.iterations.stop:
            plans.prepare(plan.iteration + 1, lambda: launched.is_busy)
        trace = launched.finish()
        # A rank that lacks the next plan waits for a planner.
        if plans.is_ahead:
            plans.quiet_period.begin()
        else:
            plans.quiet_period.end()
        return trace


MAX_SHAPES = 4
"""Maximum number of shapes that are run: together they take about as long as an iteration."""
_MB = 1e6


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A micro-batch of a plan, by its number."""

    taken: TakenPlan
    index: int
    microbatch: MicroBatch
    planned_bytes: int  # memory that the plan expects it to take while nothing else runs or is kept

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

    Weights do not change. The shards of a stage have equal plans, so they run the same
    micro-batches together; nothing is exchanged with ranks of other stages or replicas.

    Returns a line that compares the memory used with the memory planned; empty if nothing was run.
    """
    first = plans.iterations[: config.store.look_ahead]
    limit_bytes = config.cluster.device_memory_bytes
    lines = [_run(rank, plans, each, limit_bytes) for each in _largest(plans.take_ahead(first))]
    return "largest micro-batches first: " + "; ".join(lines) if lines else ""


def _largest(plans: list[TakenPlan]) -> list[_Candidate]:
    candidates = [
        _Candidate(taken, index, microbatch, stored + max(transient))
        for taken in plans
        for index, (microbatch, stored, *transient) in enumerate(
            zip(taken.plan.microbatches, *taken.plan.memory.sizes, strict=True)
        )
        if microbatch.slice is None
    ]
    candidates.sort(key=lambda each: each.planned_bytes, reverse=True)
    of_shape: dict[tuple[object, ...], _Candidate] = {}
    for each in candidates:
        of_shape.setdefault(each.shape, each)
    return list(of_shape.values())[:MAX_SHAPES]


def _run(rank: Rank, plans: Plans, each: _Candidate, limit_bytes: float) -> str:
    plan, microbatch = each.taken.plan, each.microbatch
    plans.serve(each.taken)
    is_first = plan.stage == 0
    shape = None if is_first else plan.received_shape(each.index, Payload.ACTIVATION)
    try:
        used_bytes = rank.stage.run_alone(microbatch, shape, split_backward=plan.splits_backward)
    except MemoryError as error:
        reason = str(error).partition("\n")[0]
        samples = {sample.sample_id: sample for sample in each.taken.samples}
        members = [samples[i] for i in microbatch.sample_ids]
        longest = max(members, key=lambda sample: sample.tokens)
        raise RunError(
            f"iteration {plan.iteration}, rank {rank.job.rank}: micro-batch {each.index} of "
            f"{_describe(microbatch)}, whose longest sample is {longest.sample_id} with "
            f"{longest.tokens} tokens, does not fit into memory ({reason}), "
            f"though {each.planned_bytes / _MB:,.1f} MB were planned in addition "
            f"to {plan.memory.static / _MB:,.1f} MB of model: lower cluster.device_memory_bytes, "
            f"which is {limit_bytes / _MB:,.1f} MB, or data.max_tokens, or measure costs with "
            "'dynapipe-hpc profile'"
        ) from error
    return (
        f"{_describe(microbatch)} in {used_bytes / _MB:,.1f} MB "
        f"(planned {each.planned_bytes / _MB:,.1f})"
    )


def _describe(microbatch: MicroBatch) -> str:
    targets = f" + {microbatch.target_tokens}" if microbatch.target_tokens else ""
    return f"{microbatch.n_rows} x {microbatch.row_tokens}{targets} tokens"
