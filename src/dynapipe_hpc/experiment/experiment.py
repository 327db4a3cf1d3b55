"""An experiment: a configuration, and all that follows from it and the files that it names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from pydantic import ValidationError

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.architecture.transformers import TransformersShape
from dynapipe_hpc.data.dataset.long_samples import UsedTokens, describe_long, used_of, used_tokens
from dynapipe_hpc.data.dataset.mixture import Mixture, MixtureBatches
from dynapipe_hpc.data.dataset.sampler import (
    EpochBatches,
    TokenBudgetSampler,
    are_held_out,
    evaluated_samples,
    in_batches,
)
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.extras import optional_packages
from dynapipe_hpc.data.lengths_file import (
    Lengths,
    MultitaskLengths,
    draw_lengths,
    samples_of_lengths,
)
from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.data.text.vocabulary import (
    BYTES_SHA256,
    MODEL_FILE,
    file_sha256,
    folder_sha256,
)
from dynapipe_hpc.experiment.config import ExperimentConfig, any_placement
from dynapipe_hpc.experiment.load import more_rows
from dynapipe_hpc.planner.batch.row_length import RowLengths, rows_of_tokens
from dynapipe_hpc.planner.cost.config import AnalyticConfig, ProfiledConfig
from dynapipe_hpc.planner.cost.from_config import CostSource, EstimatedCosts, MeasuredCosts
from dynapipe_hpc.planner.cost.model_state import state_factor
from dynapipe_hpc.planner.from_config import read_costs
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.planner.placement import placements, typical_sizes
from dynapipe_hpc.training.checkpoint.part_files import ITEM_BYTES
from dynapipe_hpc.training.config import LENGTHS, MAX_ITERATIONS, TrainingConfig
from dynapipe_hpc.training.huggingface.origin import Origin, find_origin, hash_of_weights

if TYPE_CHECKING:  # HDF5, which plans of lengths do without
    from dynapipe_hpc.data.dataset.dataset_file import Dataset
    from dynapipe_hpc.data.dataset.dataset_header import DatasetHeader

N_PLACED = 3
"""Number of batches that are planned to compare placements."""
MAX_COUNTED = 16
"""Limit of iterations whose samples are counted, to estimate the samples of all iterations."""


@dataclass(frozen=True, slots=True, eq=False)
class EvaluationSamples:
    """Samples of every evaluation of a run, in batches that are planned one by one."""

    dataset: Dataset
    batches: tuple[tuple[Sample, ...], ...]

    @property
    def samples(self) -> list[Sample]:
        return [sample for batch in self.batches for sample in batch]


class Experiment:
    """A configuration with its files, samples, costs, placement and planner, made on first access.

    All properties raise `InputError` if a file cannot be used, or does not suit the others.
    """

    def __init__(self, config: ExperimentConfig) -> None:
        self.config = config
        self._given = config.training

    def open_files(self) -> None:
        """Opens all files; from now on the number of iterations is known."""
        self.config = self.config.model_copy(update={"training": self.training})
        _ = self.mixture, self.evaluation, self.costs, self.origin

    def open(self) -> Self:
        self.open_files()
        _ = self.planner
        return self

    @cached_property
    def dataset(self) -> Dataset:
        """The dataset, or the mixture's datasets read as one, as `check_dataset` accepts them."""
        data = self.config.data
        if data.lengths:
            raise InputError(
                "data.lengths: draws lengths of samples that have no tokens, for plan, simulate, "
                "grid-search and tune; for anything else name a dataset in data.dataset"
            )
        from dynapipe_hpc.data.dataset.dataset_file import DatasetFile, JoinedDatasets

        if data.mixture is None:
            dataset: Dataset = DatasetFile(Path(data.paths[0]))
        else:
            dataset = JoinedDatasets({e.name: DatasetFile(Path(e.dataset)) for e in data.mixture})
        check_dataset(self.config, self.origin, dataset)
        return dataset

    @cached_property
    def origin(self) -> Origin | None:
        """The model that the run begins with; None if its weights are drawn at random."""
        model = self.config.model
        return None if model.init_from is None else find_origin(Path(model.init_from), model.family)

    @cached_property
    def weights_hash(self) -> str:
        return hash_of_weights(self.origin) if self.origin else ""

    @cached_property
    def drawn(self) -> MultitaskLengths | None:
        """The lengths that the configuration draws; None if it names one or more datasets."""
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
        """The used samples without the samples held out for evaluation."""
        if self.drawn:
            return self.used
        used, held_out = self.used, self.config.held_out
        kept = used.kept[~are_held_out(used.kept, held_out)]
        end = 0
        for file in self.dataset.files:
            start, end = end, end + file.n_samples
            if not ((start <= kept) & (kept < end)).any():
                raise InputError(
                    f"evaluation.held_out = {held_out}: leaves none of {file.n_samples:,} samples "
                    f"of '{file.path}' to train on; lower it"
                )
        return used._replace(kept=kept)

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
        data, used = self.config.data, self.trained
        batches = MixtureBatches(m, used, data) if (m := self.mixture) else EpochBatches(used, data)
        task_ids = self.drawn.task_ids if self.drawn else self.dataset.task_ids
        return TokenBudgetSampler(used, task_ids, batches)

    @cached_property
    def training(self) -> TrainingConfig:
        """The [training] table with its number of iterations, which may follow from the samples."""
        training = self._given
        if training.epochs is not None:
            n = self.sampler.iterations_of_epochs(training.epochs)
        elif training.tokens is not None:
            n = self.sampler.iterations_of_tokens(training.tokens, MAX_ITERATIONS + 1)
        else:
            return training
        if n > MAX_ITERATIONS:
            raise InputError(
                f"{_given(training)} takes more than {MAX_ITERATIONS:,} iterations, the limit of "
                "training.iterations; lower the former, or raise data.tokens_per_batch"
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
        config, table = self.config, self.config.evaluation
        if table is None:
            return None
        dataset, used = self.dataset, self.used
        if table.held_out is not None:
            ids = used.kept[are_held_out(used.kept, table.held_out)]
        else:
            data = config.data.alone(str(table.dataset))
            from dynapipe_hpc.data.dataset.dataset_file import DatasetFile

            ours, dataset = dataset.files[0].header, DatasetFile(Path(data.paths[0]))
            if differs := ours.difference(dataset.header, "start_id", "has_pairs"):
                raise InputError(
                    f"evaluation.dataset = '{data.paths[0]}': {differs}, as the training data has; "
                    "make both the same way"
                )
            used = used_of(dataset, data)
            ids = used.kept
        n_replicas = config.cluster.n_replicas
        if len(ids) < n_replicas:
            raise InputError(
                f"evaluation: there are {len(ids):,} samples for cluster.n_replicas = "
                f"{n_replicas}, each of which needs one; raise evaluation.held_out, or name a "
                "larger evaluation.dataset"
            )
        n_iterations = self.training.n_iterations
        most_tokens = table.most_tokens(n_iterations, config.data.tokens_per_batch)
        samples = evaluated_samples(
            used, ids, np.asarray(dataset.task_ids), most_tokens=most_tokens, n_least=n_replicas
        )
        batches = in_batches(samples, config.data.tokens_per_batch, n_replicas)
        return EvaluationSamples(dataset, tuple(map(tuple, batches)))

    @property
    def length_key(self) -> str:
        """The key that says how long training takes."""
        return _given(self._given).partition(" ")[0]

    def describe_iterations(self) -> str:
        n = f"{self.training.n_iterations:,}"
        return n if self._given.iterations else f"{n}, as {_given(self._given)} takes"

    @cached_property
    def data_lines(self) -> list[str]:
        """A line per dataset of a mixture, and lines about samples above data.max_tokens."""
        lines, n_iterations = list[str](), self.training.n_iterations
        if mixture := self.mixture:
            n_counted = min(n_iterations, MAX_COUNTED)
            n_samples = sum(len(self.sampler.iteration(k)) for k in range(n_counted))
            about = "about " if n_counted < n_iterations else ""
            of_each = mixture.describe(n_samples * n_iterations // n_counted)
            lines += [f"in {about}{n_iterations:,} iterations, {line}" for line in of_each]
        if self.config.data.lengths is None:
            lines += describe_long(self.dataset, self.config.data)
        return lines

    @cached_property
    def rows(self) -> RowLengths:
        """Row lengths of the used samples, after long ones are cut."""
        kept, inputs, targets, rejected = self.used
        two_sides = self.config.model.has_target_rows
        return rows_of_tokens(inputs[kept], (targets + rejected)[kept], two_sides)

    @cached_property
    def costs(self) -> CostSource:
        """Costs of micro-batches: estimates, or the cost table.

        If the layers of the model are a library's, estimates load that library and torch.
        """
        config, model = self._cost_config, self.config.model
        if isinstance(config, ProfiledConfig) or not isinstance(model, TransformersShape):
            return read_costs(config, model)
        with optional_packages():
            from dynapipe_hpc.models.transformers.parts import decoder_parts

        return EstimatedCosts(
            config, decoder_parts(model, self.config.training.dtype, is_packed=self._is_packed)
        )

    @property
    def _is_packed(self) -> bool:
        return self.config.planner.plainest_layout is Layout.PACKED

    @property
    def _cost_config(self) -> AnalyticConfig | ProfiledConfig:
        cost, training = self.config.planner.cost, self.config.training
        if isinstance(cost, ProfiledConfig):
            return cost
        element_bytes = ITEM_BYTES[training.dtype]
        factor = state_factor(element_bytes)
        rates = cost.model_dump() | {"state_factor": factor, "element_bytes": element_bytes}
        return AnalyticConfig.model_validate(rates)

    @cached_property
    def placement(self) -> Placement:
        """Layers of every stage: as configured or else in the fastest placement.

        The fastest is chosen from equal shares and placements that balance stages, by the predicted
        time of the first batches.
        """
        if self._is_placed:
            return any_placement(self.config)
        return self._fastest(self.rows, [self.sampler.iteration(k) for k in range(N_PLACED)])

    @property
    def _is_placed(self) -> bool:
        return bool(self.config.model.layers_per_stage) or self.config.cluster.n_stages == 1

    def placement_for(self, batches: Sequence[Lengths]) -> Placement:
        """Placement for batches of lengths; the dataset is not read."""
        if self._is_placed:
            return any_placement(self.config)
        inputs, targets = np.concatenate(batches).T.astype(np.int64)
        rows = rows_of_tokens(inputs, targets, self.config.model.has_target_rows)
        return self._fastest(rows, [samples_of_lengths(batch) for batch in batches[:N_PLACED]])

    def _fastest(self, rows: RowLengths, first: Sequence[Sequence[Sample]]) -> Placement:
        config = self.config
        sizes = typical_sizes(rows, config.data.tokens_per_batch, config.cluster)
        layout = config.planner.plainest_layout
        candidates = placements(self.costs, config.model, config.cluster, sizes, layout=layout)
        if len(candidates) == 1:
            return candidates[0]
        return min(candidates, key=lambda each: _predicted_ms(self.planner_of(each), first))

    @cached_property
    def planner(self) -> Planner:
        return self.planner_of(self.placement)

    def planner_of(self, placement: Placement) -> Planner:
        config = self.config
        return Planner.from_config(
            config.planner,
            self.costs,
            config.model,
            placement,
            cluster=config.cluster,
            max_tokens=config.data.max_tokens,
        )

    def drop_slices(self) -> None:
        """Plans no slices of samples from now on."""
        self.config = self.config.without_slices()
        self.planner = self.planner.choosing_by(self.config.planner, self.config.data.max_tokens)

    def variant(self, config: ExperimentConfig) -> Self:
        """The experiment on another cluster or with other plans; reuses what is read already."""
        other = type(self)(config)
        for name in ("used", "trained", "mixture", "sampler", "rows"):
            setattr(other, name, getattr(self, name))
        is_alike = self._is_packed == other._is_packed
        match self.costs, other._cost_config:
            # The same table, used in another way.
            case MeasuredCosts() as ours, ProfiledConfig() as used if used.path == ours.config.path:
                other.costs = MeasuredCosts(used, ours.table)
            # The same parts, at other rates or on other ranks.
            case EstimatedCosts() as ours, AnalyticConfig() as rates if is_alike:
                other.costs = EstimatedCosts(rates, ours.parts)
        return other


def _predicted_ms(planner: Planner, batches: Sequence[Sequence[Sample]]) -> float:
    """Predicted time of all batches together; infinite if one of them cannot run."""
    try:
        return sum(planner.choose(samples).best.iteration_ms for samples in batches)
    except InputError:  # reported when it is planned for use
        return float("inf")


def _given(training: TrainingConfig) -> str:
    [(name, value)] = [(n, v) for n in LENGTHS if (v := getattr(training, n)) is not None]
    return f"training.{name} = {value:,}"


def check_dataset(config: ExperimentConfig, origin: Origin | None, dataset: Dataset) -> None:
    """Refuses datasets that the model of an experiment cannot be trained on.

    `origin` is the model that the experiment begins with, if it names one.
    """
    # The tokenizer first: a different number of tokens may only follow from a different tokenizer.
    if config.data.check_tokenizer and origin:
        _check_tokenizer(origin, dataset)
    n_tokens, n_rows = dataset.header.vocab_size, config.model.vocab_size
    if n_tokens > n_rows:
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
    for file in dataset.files:
        if file.header.start_id is None and config.model.has_target_rows:
            raise InputError(
                f"{file.path}: has no start token, but the decoder of a {config.model.family} "
                "reads one before every target; make it again with dynapipe-hpc preprocess --start "
                "TOKEN"
            )
    check_pairs(config, dataset)


def check_pairs(config: ExperimentConfig, dataset: Dataset) -> None:
    """Refuses a dataset if the objective does not train its kind of samples."""
    objective, trains_pairs = config.training.objective, config.training.preference_loss is not None
    for file in dataset.files:
        if file.header.has_pairs and not trains_pairs:
            raise InputError(
                f'{file.path}: holds preference pairs, but training.objective is "{objective}"; '
                'set it to "dpo", or make a dataset of the answers that are to be learned'
            )
        if trains_pairs and not file.header.has_pairs:
            raise InputError(
                f'{file.path}: holds no preference pairs, which training.objective = "{objective}" '
                "compares; make a dataset of pairs with dynapipe-hpc preprocess"
            )


def _check_tokenizer(origin: Origin, dataset: Dataset) -> None:
    file, folder = dataset.files[0], origin.small_files  # all have the same tokenizer
    if folder is None or (sha256 := folder_sha256(folder)) is None:
        return
    made_with = file.header.tokenizer_sha256
    alone = folder / MODEL_FILE
    is_same = made_with == sha256 or (alone.exists() and made_with == file_sha256(alone))
    if not is_same and not _has_same_tokens(file.header, folder):
        raise InputError(
            f"{file.path}: its tokens were made by {file.header.tokenizer_name} "
            f"({file.header.vocab_size:,} tokens), not by the tokenizer of model.init_from = "
            f"'{origin.folder}', for which the same ids mean other text; make it again with "
            f"dynapipe-hpc preprocess --tokenizer {folder}, or, if the ids do mean the same, set "
            "data.check_tokenizer to false"
        )


def _has_same_tokens(header: DatasetHeader, folder: Path) -> bool:
    if header.tokenizer_sha256 == BYTES_SHA256:
        return False
    # Loads `transformers`, so only where files differ.
    from dynapipe_hpc.data.text.tokenizer_files import read_tokenizer

    try:
        tokenizer = read_tokenizer(folder)
    except InputError as error:
        raise InputError(
            f"{error}; if a dataset was made with the same tokenizer, set data.check_tokenizer to "
            "false"
        ) from None
    return tokenizer.vocabulary_sha256 == header.vocabulary_sha256
