"""The files that an experiment reads."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from pydantic import ValidationError

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.architecture.transformers import TransformersShape
from dynapipe_hpc.data.dataset.batches import EpochBatches
from dynapipe_hpc.data.dataset.long_samples import UsedTokens, used_of, used_tokens
from dynapipe_hpc.data.dataset.mixture import Mixture
from dynapipe_hpc.data.dataset.mixture_batches import MixtureBatches
from dynapipe_hpc.data.dataset.sampler import TokenBudgetSampler
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.extras import optional_packages
from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.data.multitask_lengths import MultitaskLengths, draw_lengths
from dynapipe_hpc.experiment.check_tokenizer import check_tokenizer
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.evaluation_samples import (
    EvaluationSamples,
    evaluation_samples,
    without_held_out,
)
from dynapipe_hpc.experiment.sizes_of_origin import more_rows
from dynapipe_hpc.planner.batch.row_length import RowLengths, rows_of_tokens
from dynapipe_hpc.planner.cost.config import AnalyticConfig, ProfiledConfig
from dynapipe_hpc.planner.cost.from_config import CostSource, EstimatedCosts, MeasuredCosts
from dynapipe_hpc.planner.cost.model_state import state_factor
from dynapipe_hpc.planner.from_config import read_costs
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.training.checkpoint.stored_tensors import ITEM_BYTES
from dynapipe_hpc.training.config import LENGTHS, MAX_ITERATIONS, N_AVERAGES, TrainingConfig
from dynapipe_hpc.training.huggingface.hash_of_weights import hash_of_weights
from dynapipe_hpc.training.huggingface.origin import Origin, find_origin

if TYPE_CHECKING:  # HDF5, which plans of lengths do without
    from dynapipe_hpc.data.dataset.joined_datasets import Dataset


class ExperimentFiles:
    """Datasets and cost table of an experiment; each is opened once, on first access.

    All properties raise `InputError` if a file cannot be used.

    Attributes:
        config: The configuration, which names the files.
    """

    def __init__(self, config: ExperimentConfig) -> None:
        """Opens nothing yet."""
        self.config = config

    @cached_property
    def dataset(self) -> Dataset:
        """The dataset, or those of the mixture read as one; the model knows their tokens."""
        data = self.config.data
        if data.lengths:
            raise InputError(
                "data.lengths: draws lengths of samples that have no tokens, for plan, simulate, "
                "grid-search and tune; for anything else name a dataset in data.dataset"
            )
        from dynapipe_hpc.data.dataset.dataset_file import DatasetFile
        from dynapipe_hpc.data.dataset.joined_datasets import JoinedDatasets

        if data.mixture is None:
            dataset: Dataset = DatasetFile(Path(data.paths[0]))
        else:
            dataset = JoinedDatasets({e.name: DatasetFile(Path(e.dataset)) for e in data.mixture})
        check_dataset(self, dataset)
        return dataset

    @cached_property
    def origin(self) -> Origin | None:
        """The model that the run begins with; None if its weights are drawn at random."""
        model = self.config.model
        return None if model.init_from is None else find_origin(Path(model.init_from), model.family)

    @cached_property
    def weights_hash(self) -> str:
        """Hash of the weights of that model; empty without one."""
        return hash_of_weights(self.origin) if self.origin else ""

    @cached_property
    def drawn(self) -> MultitaskLengths | None:
        """The lengths that the configuration draws; None if it names a dataset or several."""
        lengths = self.config.data.lengths
        return draw_lengths(lengths.n_samples, lengths.seed) if lengths else None

    @cached_property
    def used(self) -> UsedTokens:
        """The samples that are used, and their numbers of tokens after long ones are cut."""
        if self.drawn:
            data = self.config.data.alone("data.lengths")
            return used_tokens(self.drawn.inputs, self.drawn.targets, data)
        return used_of(self.dataset, self.config.data)

    @cached_property
    def trained(self) -> UsedTokens:
        """The used samples without those that are held out for evaluation."""
        if self.drawn:
            return self.used
        return without_held_out(self.used, self.config.held_out, self.dataset)

    @cached_property
    def mixture(self) -> Mixture | None:
        """Rates at which samples are drawn from several datasets; None for a single one."""
        if self.config.data.mixture is None:
            return None
        kept, lengths = self.trained.kept, self.trained.lengths
        ends = np.searchsorted(kept, np.cumsum([file.n_samples for file in self.dataset.files]))
        n_tokens = np.concatenate(([0], np.cumsum(lengths[kept])))[ends]
        sizes = [np.diff(each, prepend=0).tolist() for each in (ends, n_tokens)]
        return Mixture.from_config(self.config.data, *sizes)

    @cached_property
    def sampler(self) -> TokenBudgetSampler:
        """Sampler of the global batches."""
        data, used = self.config.data, self.trained
        batches = MixtureBatches(m, used, data) if (m := self.mixture) else EpochBatches(used, data)
        task_ids = self.drawn.task_ids if self.drawn else self.dataset.task_ids
        return TokenBudgetSampler(used, task_ids, batches)

    @cached_property
    def training(self) -> TrainingConfig:
        """The [training] table with a number of iterations, where that follows from the samples."""
        training = self.config.training
        if training.epochs is not None:
            n = self.sampler.iterations_of_epochs(training.epochs)
        elif training.tokens is not None:
            n = self.sampler.iterations_of_tokens(training.tokens, MAX_ITERATIONS + 1)
        else:
            return training
        if n > MAX_ITERATIONS:
            raise InputError(
                f"{_given(training)} takes more than {MAX_ITERATIONS:,} iterations, the limit of "
                "training.iterations; lower it, or raise data.tokens_per_batch"
            )
        try:
            return training.of_length(n)
        except ValidationError as error:
            reasons = "; ".join(
                each["msg"].removeprefix("Value error, ") for each in error.errors()
            )
            raise InputError(f"{_given(training)} takes {n:,} iterations: {reasons}") from None

    @cached_property
    def evaluation(self) -> EvaluationSamples | None:
        """The samples that are evaluated; None without an [evaluation] table."""
        table = self.config.evaluation
        if table is None:
            return None
        n_iterations = self.training.n_iterations
        return evaluation_samples(
            self.config, table, self.dataset, self.used, n_iterations=n_iterations
        )

    def describe_evaluation(self) -> str:
        """The samples that are evaluated, and when."""
        table = self.config.evaluation
        if table is None or self.evaluation is None:
            return "none, as there is no [evaluation] table"
        return self.evaluation.describe(table)

    def describe_iterations(self) -> str:
        """Number of iterations, and the key from which it follows, if it does."""
        given = _given(self.config.training)
        n = f"{self.training.n_iterations:,}"
        return n if self.config.training.iterations else f"{n}, as {given} takes"

    @cached_property
    def rows(self) -> RowLengths:
        """Row lengths of the used samples, after long ones are cut."""
        kept, inputs, targets, rejected = self.used
        two_sides = self.config.model.has_target_rows
        return rows_of_tokens(inputs[kept], (targets + rejected)[kept], two_sides)

    @cached_property
    def costs(self) -> CostSource:
        """Costs of micro-batches: estimates, or the cost table.

        Estimates of a model whose layers are of a library load that, and torch.
        """
        config, model = self._cost_config, self.config.model
        if isinstance(config, ProfiledConfig) or not isinstance(model, TransformersShape):
            return read_costs(config, model)
        with optional_packages():
            from dynapipe_hpc.training.huggingface.decoder_parts import decoder_parts

        return EstimatedCosts(
            config, decoder_parts(model, self.config.training.dtype, is_packed=self._is_packed)
        )

    @property
    def _is_packed(self) -> bool:
        """Whether all micro-batches of plans are packed."""
        return self.config.planner.plainest_layout is Layout.PACKED

    @property
    def _cost_config(self) -> AnalyticConfig | ProfiledConfig:
        """The [planner.cost] table, with the dtype and the optimizer of the run."""
        cost, training = self.config.planner.cost, self.config.training
        if isinstance(cost, ProfiledConfig):
            return cost
        element_bytes = ITEM_BYTES[training.dtype]
        factor = state_factor(element_bytes, N_AVERAGES[training.optimizer])
        rates = cost.model_dump() | {"state_factor": factor, "element_bytes": element_bytes}
        return AnalyticConfig.model_validate(rates)

    def planner(self, placement: Placement) -> Planner:
        """Planner of the iterations, for layers that are placed in this way."""
        config = self.config
        return Planner.from_config(
            config.planner,
            self.costs,
            config.model,
            placement,
            cluster=config.cluster,
            max_tokens=config.data.max_tokens,
        )

    def variant(self, config: ExperimentConfig) -> Self:
        """Files of another experiment with the same samples and costs, which are not read again."""
        other = type(self)(config)
        for name in ("used", "trained", "mixture", "sampler", "rows"):
            setattr(other, name, getattr(self, name))
        match self.costs, other._cost_config:
            # The same table, used in another way.
            case MeasuredCosts() as ours, ProfiledConfig() as used if used.path == ours.config.path:
                other.costs = MeasuredCosts(used, ours.table)
            # The same parts, at other rates or on other ranks.
            case EstimatedCosts() as ours, AnalyticConfig() as rates if self._has_parts_of(other):
                other.costs = EstimatedCosts(rates, ours.parts)
        return other

    def _has_parts_of(self, other: Self) -> bool:
        """Whether estimates look at the same parts of a model."""
        dtypes = [files.config.training.dtype for files in (self, other)]
        sizes = [files.config.model.sizes for files in (self, other)]
        layouts = [files._is_packed for files in (self, other)]
        return all(ours == others for ours, others in (dtypes, sizes, layouts))


def _given(training: TrainingConfig) -> str:
    """The key that says how long training takes, and its value."""
    [(name, value)] = [(n, v) for n in LENGTHS if (v := getattr(training, n)) is not None]
    return f"training.{name} = {value:,}"


def check_dataset(files: ExperimentFiles, dataset: Dataset) -> None:
    """Refuses datasets that the model of an experiment cannot be trained on.

    Raises:
        InputError: They have another tokenizer, more tokens than the model, no start token, or
            preference pairs where the objective trains none, or none where it does.
    """
    # The tokenizer first: with another one, other numbers of tokens are not the fault.
    config = files.config
    if config.data.check_tokenizer and files.origin:
        check_tokenizer(files.origin, dataset)
    check_vocabulary(config, dataset)
    check_start(config, dataset)
    check_pairs(config, dataset)


def check_pairs(config: ExperimentConfig, dataset: Dataset) -> None:
    """Refuses datasets of another kind of samples than the objective trains.

    Raises:
        InputError: A dataset has preference pairs, or has none, where the other is trained.
    """
    objective, trains_pairs = config.training.objective, config.training.preference_loss is not None
    for file in dataset.files:
        if file.has_pairs and not trains_pairs:
            raise InputError(
                f'{file.path}: holds preference pairs, but training.objective is "{objective}"; '
                'set it to "dpo", or make a dataset of the answers that are to be learned'
            )
        if trains_pairs and not file.has_pairs:
            raise InputError(
                f'{file.path}: holds no preference pairs, which training.objective = "{objective}" '
                "compares; make a dataset of pairs with dynapipe-hpc preprocess"
            )


def check_vocabulary(config: ExperimentConfig, dataset: Dataset) -> None:
    """Refuses a dataset with tokens outside the model's vocabulary.

    Raises:
        InputError: The vocabulary of the dataset is larger than that of the model.
    """
    if dataset.vocab_size > config.model.vocab_size:
        n_tokens, n_rows = dataset.vocab_size, config.model.vocab_size
        its_tokenizer = f"{config.data.paths[0]}: its tokenizer has {n_tokens} tokens"
        if config.model.init_from is None:
            raise InputError(
                f"{its_tokenizer}, but model.vocab_size is {n_rows}; raise it to at least "
                f"{n_tokens}"
            )
        raise InputError(
            f"{its_tokenizer}, but the embedding of model.init_from = '{config.model.init_from}' "
            f"has {n_rows} rows; {more_rows(n_tokens)}; or preprocess with tokens that the model "
            "has"
        )


def check_start(config: ExperimentConfig, dataset: Dataset) -> None:
    """Refuses datasets without a start token for a model whose decoder needs one.

    Raises:
        InputError: Samples begin with tokens of their own, which go to the encoder.
    """
    for file in dataset.files:
        if file.start_id is None and config.model.has_target_rows:
            raise InputError(
                f"{file.path}: has no start token, but the decoder of a {config.model.family} "
                "reads one before every target; make it again with dynapipe-hpc preprocess --start "
                "TOKEN"
            )
