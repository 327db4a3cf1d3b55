"""The configuration of an experiment: its tables, and the checks that span them."""

from typing import Any, Self

from pydantic import Field, model_validator

from dynapipe_hpc.architecture.families import AnyModelShape
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.architecture.transformers import TransformersShape
from dynapipe_hpc.data.config import DataConfig
from dynapipe_hpc.data.config_table import ConfigTable
from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.executor.config import ExecutorConfig
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.row_length import padded
from dynapipe_hpc.planner.config import PlannerConfig
from dynapipe_hpc.report.config import ReportConfig
from dynapipe_hpc.store.config import StoreConfig
from dynapipe_hpc.training.checkpoint.config import CheckpointConfig
from dynapipe_hpc.training.config import TrainingConfig


class EvaluationConfig(ConfigTable):
    """The [evaluation] table: on which samples, and how often, a run measures its loss.

    A run evaluates before its first iteration, after every `every` iterations, and at its end.

    Attributes:
        dataset: Path of an HDF5 dataset whose samples are evaluated.
        held_out: Share of the training samples that is evaluated and never trained on; held-out
            samples are chosen by a hash of their ids, so that other seeds and settings hold out the
            same ones.
        every: Number of iterations between evaluations; 0 means only at the start and at the end.
        tokens: Token limit of one evaluation. All evaluations of a run have the same samples, at
            least one per replica. None: together they have one hundredth of the run's tokens, and
            take less than one hundredth of its time; if the run is continued with more iterations,
            they have more samples than before.
        patience: Number of evaluations in a row without a new lowest loss after which a run ends;
            the evaluation before the first iteration does not count. 0 for no early end.
    """

    dataset: str | None = Field(default=None, min_length=1)
    held_out: float | None = Field(default=None, gt=0, lt=1)
    every: int = Field(default=0, ge=0)
    tokens: int | None = Field(default=None, ge=1, le=2**40)
    patience: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _check_dataset_or_held_out(self) -> Self:
        if (self.dataset is None) == (self.held_out is None):
            problem = "neither is" if self.dataset is None else "both are"
            raise ValueError(f"exactly one of dataset and held_out is needed; {problem} given")
        return self

    @model_validator(mode="after")
    def _check_patience_needs_every(self) -> Self:
        if self.patience and not self.every:
            raise ValueError(
                f"patience ({self.patience}) has no effect without every; set every to the number "
                "of iterations between evaluations"
            )
        return self

    def is_due(self, n_done: int, n_iterations: int) -> bool:
        return n_done in (0, n_iterations) or (self.every > 0 and n_done % self.every == 0)

    def most_tokens(self, n_iterations: int, tokens_per_batch: int) -> int:
        """Token limit of one evaluation, given the run's iterations and tokens per iteration."""
        if self.tokens is not None:
            return self.tokens
        n_between = (n_iterations - 1) // self.every if self.every else 0
        return n_iterations * tokens_per_batch // (100 * (2 + n_between))


class MethodConfig(ConfigTable):
    """A [[study.methods]] table: one of the methods that are compared.

    Attributes:
        name: Name of the method.
        planner: Keys of [planner] that differ for this method, table by table.
        cluster: Keys of [cluster] that differ for this method.
    """

    name: str = Field(min_length=1, max_length=60, pattern=r"^[^\x00-\x1f\x7f]*$")
    planner: dict[str, Any] = Field(default={})
    cluster: dict[str, Any] = Field(default={})


class StudyConfig(ConfigTable):
    """The [study] table, which runs do not read.

    Attributes:
        methods: Methods to compare; by default only the one that the other tables configure.
        ranks_per_node: Number of ranks on a node: the maximum number of shards in a grid search.
    """

    methods: tuple[MethodConfig, ...] = ()
    ranks_per_node: int = Field(default=8, ge=1, le=2**20)

    @model_validator(mode="after")
    def _check_method_names_differ(self) -> Self:
        names = [method.name for method in self.methods]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"methods: two have the name '{name}'; rename one")
        return self


class ExperimentConfig(ConfigTable):
    """Everything a run depends on; each attribute is the table of the same name.

    Without an [evaluation] table, a run does not evaluate; no run reads [study].
    """

    data: DataConfig
    model: AnyModelShape
    cluster: Cluster
    planner: PlannerConfig
    training: TrainingConfig
    store: StoreConfig = StoreConfig()
    executor: ExecutorConfig = ExecutorConfig()
    report: ReportConfig = ReportConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    evaluation: EvaluationConfig | None = None
    study: StudyConfig = StudyConfig()

    @property
    def may_slice(self) -> bool:
        model = self.model
        may_cut = model.cache_width > 0 and self.training.preference_loss is None
        return self.planner.slices != "off" and may_cut

    def without_slices(self) -> Self:
        batch = self.planner.batch.model_copy(update={"slices": "off"})
        planner = self.planner.model_copy(update={"batch": batch})
        return self.model_copy(update={"planner": planner})

    @property
    def held_out(self) -> float:
        """Share of the training samples that is held out for evaluation; 0 if none is."""
        return (self.evaluation.held_out if self.evaluation else None) or 0.0

    @model_validator(mode="after")
    def _check_samples_suit_plans_and_training(self) -> Self:
        data, model, planner, training = self.data, self.model, self.planner, self.training
        multiple = planner.document_multiple
        row_tokens = padded(data.max_tokens, multiple)
        if row_tokens > model.max_tokens:
            raise ValueError(
                f"data.max_tokens ({data.max_tokens}) needs rows of {row_tokens} tokens, "
                f"padded to a multiple of {multiple}, but model.max_tokens "
                f"({model.max_tokens}) is less; raise it to at least {row_tokens} or "
                "lower data.max_tokens"
            )
        if planner.slice_tokens and (obstacle := model.slices_obstacle):
            raise ValueError(
                f"planner.batch.slices is {planner.slice_tokens}, but samples of family "
                f"{model.family!r} cannot be cut into slices, as {obstacle}; leave it out, "
                "and cut long samples with data.max_tokens"
            )
        if training.preference_loss is not None and (problem := _problem_of_pairs(self)):
            raise ValueError(f'training.objective is "{training.objective}", but {problem}')
        if training.init_optimizer and model.init_from is None:
            raise ValueError(
                "training.init_optimizer is true, but there is no model.init_from whose optimizer "
                "it could be; name a checkpoint there, or leave init_optimizer out"
            )
        if self.checkpoint.keep_best and self.evaluation is None:
            raise ValueError(
                "checkpoint.keep_best is true, but there is no [evaluation] table that says on "
                "which samples a state is the best; add one, or set keep_best to false"
            )
        return self

    @model_validator(mode="after")
    def _check_model_suits_stages_and_shards(self) -> Self:
        cluster, model, planner = self.cluster, self.model, self.planner
        n_shards, splits = cluster.n_shards, planner.schedule.split_backward
        if not model.has_own_layers:
            refused = {
                f"cluster.n_shards is {n_shards}": n_shards > 1,
                "planner.cost.recompute has 'selective'": "selective" in planner.cost.recompute,
            }
            for problem in (each for each, is_set in refused.items() if is_set):
                raise ValueError(
                    f"{problem}, but the layers of model.family = {model.family!r} belong to a "
                    "library and run uncut; leave it out, or take a family of this package "
                    "(docs/huggingface.md)"
                )
        if cluster.n_stages > model.n_all_layers:
            raise ValueError(
                f"cluster.n_stages ({cluster.n_stages}) exceeds model.n_layers "
                f"({model.layers_text}); a stage needs at least one layer"
            )
        placed = model.layers_per_stage
        if placed and len(placed) != cluster.n_stages:
            raise ValueError(
                f"model.layers_per_stage names {len(placed)} stages, but cluster.n_stages is "
                f"{cluster.n_stages}; change either, or leave layers_per_stage out"
            )
        sizes = {name: getattr(model, name) for name in model.divisible_by_shards}
        for name, size in sizes.items():
            if size is not None and size % n_shards:
                raise ValueError(
                    f"cluster.n_shards ({n_shards}) does not divide model.{name} ({size}): every "
                    "shard takes an equal part of heads and inner widths; set it to a "
                    f"multiple, such as {-(-size // n_shards) * n_shards}, or change n_shards"
                )
        if splits and cluster.sequence_parallel:
            raise ValueError(
                "planner.schedule.split_backward and cluster.sequence_parallel are both true: the "
                "gradients of weights need tokens of all shards, which would have to be gathered "
                "again, or kept whole until then; set either to false"
            )
        if splits and isinstance(model, TransformersShape) and model.has_relu:
            raise ValueError(
                f"planner.schedule.split_backward is true, but layers of this {model.model_type} "
                "have a ReLU, which frees too little memory for the gradients that would wait; set "
                "it to false"
            )
        each_ids = model.ids_per_shard(n_shards)
        if (n_shards - 1) * each_ids >= model.vocab_size:
            raise ValueError(
                f"model.vocab_size ({model.vocab_size}) leaves the last of cluster.n_shards "
                f"({n_shards}) without token ids, as every shard takes {each_ids}; lower n_shards, "
                f"or raise vocab_size to {n_shards * each_ids}"
            )
        return self


def _problem_of_pairs(config: ExperimentConfig) -> str:
    """Reason why preference pairs, whose answers share their prompt, cannot be trained."""
    if obstacle := config.model.pairs_obstacle:
        return (
            "answers of a preference pair cannot share their prompt in family "
            f"{config.model.family!r}, as {obstacle}; take a decoder-only model, without soft caps"
        )
    if config.planner.plainest_layout is not Layout.PACKED:
        return (
            "only packed rows hold preference pairs, whose answers share their prompt; set "
            'planner.batch.layouts = ["packed"], or a packed rule'
        )
    if config.planner.slice_tokens:
        return (
            f"planner.batch.slices is {config.planner.slice_tokens}, and preference pairs cannot "
            "be cut into slices; leave it out"
        )
    if config.data.long_samples == "cut_input_end":
        return (
            'data.long_samples is "cut_input_end", and answers follow from the end of a prompt; '
            'set it to "cut_input", which cuts the start'
        )
    if config.data.loss_on == "all":
        return (
            'data.loss_on is "all", and only answers are compared; set it to "targets", or leave '
            "it out"
        )
    if config.data.lengths is not None:
        return "[data.lengths] draws no preference pairs; name a dataset in data.dataset"
    return ""


def any_placement(config: ExperimentConfig) -> Placement:
    """The configured placement or, if there is none, equal shares.

    It is for uses that check or measure costs, but make no plan.
    """
    if configured := config.model.layers_per_stage:
        return Placement(configured)
    return Placement.equal_shares(config.model.n_all_layers, config.cluster.n_stages)
