"""A pipeline stage without torch: one number that multiplies, and a sum as the loss."""

import numpy as np
import numpy.typing as npt

from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.training.counters import StageReport

Array = npt.NDArray[np.float64]


class LinearStage:
    """Multiplies its input by a factor; the input of the first stage is its sample ids."""

    def __init__(self, factor: float, *, first: bool, last: bool, width: int = 1) -> None:
        self.factor = factor
        self.factor_gradient = 0.0
        self.calls: list[str] = []
        self._first = first
        self._last = last
        self._width = width
        self._loaded: dict[int, Array] = {}
        self._inputs: dict[int, Array] = {}
        self._waiting: dict[int, float] = {}
        self._split_backward = False
        self._loss = 0.0

    def load(self, index: int, microbatch: MicroBatch) -> None:
        self.calls.append(f"load {index}")
        values = np.zeros((microbatch.n_rows, microbatch.row_tokens, self._width))
        values[:, 0, 0] = [row[0] for row in microbatch.rows]
        self._loaded[index] = values

    def forward(
        self, index: int, activation: Array | None, *, split_backward: bool = False
    ) -> Array | None:
        self.calls.append(f"forward {index}{' to split' if split_backward else ''}")
        self._split_backward = split_backward
        inputs = self._loaded.pop(index) if activation is None else activation
        self._inputs[index] = inputs
        if not self._last:
            return self.factor * inputs
        self._loss += float((self.factor * inputs).sum())
        return None

    def backward(self, index: int, gradient: Array | None) -> Array | None:
        self.calls.append(f"backward {index}")
        inputs = self._inputs.pop(index)
        arrived = np.ones_like(inputs) if gradient is None else gradient
        self._waiting[index] = float((arrived * inputs).sum())
        if not self._split_backward:
            self.factor_gradient += self._waiting.pop(index)
        return None if self._first else self.factor * arrived

    def backward_weight(self, index: int) -> None:
        self.calls.append(f"weight {index}")
        self.factor_gradient += self._waiting.pop(index)

    def expect_last_backward(self, index: int) -> None:
        self.calls.append(f"last {index}")

    def reduce_gradients(self) -> None:
        self.calls.append("reduce")

    def step_optimizer(self) -> None:
        self.calls.append("step")

    def finish_iteration(self) -> StageReport:
        report, self._loss = StageReport(self._loss, 0.0, 0.0, 0), 0.0
        return report
