"""Longest samples that fit into the memory of an experiment's stages, as text."""

from collections.abc import Iterator

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.describe_data import describe_data
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.planner.batch.longest_sample import Side, longest_row
from dynapipe_hpc.planner.batch.row_length import RowLengths
from dynapipe_hpc.planner.cost.cost_model import CostModel


def describe_room(experiment: Experiment, rows: RowLengths) -> str:
    """Rates of a mixture, samples that are cut, and the longest that fits, by recomputation.

    Lengths are those of rows of one sample. For an encoder-decoder model: the longest input with
    the dataset's longest target, and the longest target with its longest input.
    """
    cost = experiment.planner.cost.of_layout(experiment.config.planner.plainest_layout)
    room = _Room(experiment.config, cost, rows)
    data = describe_data(experiment, experiment.config.training.n_iterations)
    return "\n".join([*data, f"longest rows that fit, costs {cost.describe()}", *room.lines()])


class _Room:
    """The longest rows that fit, for each side of the model."""

    def __init__(self, config: ExperimentConfig, cost: CostModel, rows: RowLengths) -> None:
        self._config = config
        self._cost = cost
        self._longest = {"row_tokens": int(rows.row_tokens.max())}
        self._longest["target_tokens"] = int(rows.target_tokens.max())

    def lines(self) -> Iterator[str]:
        """One line per side of the model."""
        inputs, targets = self._longest["row_tokens"], self._longest["target_tokens"]
        if not self._cost.is_encoder_decoder:
            yield self._line("samples", "row_tokens", 0)
            return
        yield self._line(f"inputs, beside targets of {targets:,} tokens", "row_tokens", targets)
        yield self._line(f"targets, beside inputs of {inputs:,} tokens", "target_tokens", inputs)

    def _line(self, what: str, side: Side, other_tokens: int) -> str:
        parts = ", ".join(
            f"{mode.text} {self._longest_row(mode, side, other_tokens):,}"
            for mode in self._cost.recompute_modes
        )
        return (
            f"{what}: {parts} tokens of at most {self._config.model.max_tokens:,}; "
            f"the dataset's longest {self._longest[side]:,}"
        )

    def _longest_row(self, mode: Recompute, side: Side, other_tokens: int) -> int:
        return longest_row(
            self._cost,
            self._config.cluster,
            mode,
            self._config.model.max_tokens,
            side=side,
            other_tokens=other_tokens,
            multiple=self._config.planner.document_multiple,
        )
