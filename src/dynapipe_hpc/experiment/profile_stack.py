"""Layers alone on a rank, run and measured as the executor runs a stage."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dynapipe_hpc.data.dataset_file import DatasetFile
from dynapipe_hpc.data.dataset_header import DatasetHeader
from dynapipe_hpc.data.dataset_writer import DatasetWriter
from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.data.token_block import TokenBlock
from dynapipe_hpc.experiment.assemble import dtype_of
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.models.collate import TokenBatch, collate
from dynapipe_hpc.models.gpt import GptStage
from dynapipe_hpc.models.shards import ONE_SHARD, Shards
from dynapipe_hpc.training.collectives import SingleRankCollectives
from dynapipe_hpc.training.live_memory import LiveMemory
from dynapipe_hpc.training.module_stage import ModuleStage
from dynapipe_hpc.training.optimizer import Optimizer
from dynapipe_hpc.training.token_loader import TokenLoader


class StackShape(NamedTuple):
    """What a stack holds."""

    n_layers: int
    first: bool = False
    last: bool = False


# One and two layers tell a layer from what a stage takes besides; the others add one part each.
STACKS = (
    StackShape(n_layers=1),
    StackShape(n_layers=2),
    StackShape(n_layers=0, first=True),
    StackShape(n_layers=0, last=True),
)


class StackTimes(NamedTuple):
    """Of one micro-batch; see `StageCosts`."""

    forward_ms: float
    backward_ms: float


class StackMemory(NamedTuple):
    """Of one micro-batch; see `StageCosts`."""

    stored_bytes: float
    forward_transient_bytes: float
    backward_transient_bytes: float


class OutOfMemoryError(RuntimeError):
    """A micro-batch was too large for a stack."""


class Stack:
    """Some layers, with the embedding or the head, as a stage of their own."""

    def __init__(
        self,
        config: ExperimentConfig,
        stack: StackShape,
        loader: TokenLoader[TokenBatch],
        shards: Shards = ONE_SHARD,
    ) -> None:
        """Builds a shard of the layers; `loader` must have been started with samples to load.

        The shards of a stack measure together, and run out of memory together: they need the
        same.
        """
        self._shape = stack
        self._width = config.model.hidden_size
        self._dtype = dtype_of(config)
        self._loader = loader
        self._module = GptStage(
            config.model,
            range(stack.n_layers),
            first=stack.first,
            last=stack.last,
            shards=shards,
            dtype=self._dtype,
        )
        self._optimizer = Optimizer(self._module, config.training, SingleRankCollectives())

    @property
    def weight_bytes(self) -> int:
        """Size of the weights."""
        return self._optimizer.parameters.weight_bytes

    def times_ms(self, microbatch: MicroBatch) -> StackTimes:
        """Passes a micro-batch forward, reading its tokens included, and backward.

        Raises:
            OutOfMemoryError: The micro-batch is too large; smaller ones can still run.
        """
        with _naming_out_of_memory():
            stage, activation, gradient = self._prepared(microbatch)
            start_s = time.perf_counter()
            stage.load(0, microbatch)
            stage.forward(0, activation)
            turn_s = time.perf_counter()
            stage.backward(0, gradient)
            end_s = time.perf_counter()
        return StackTimes(1e3 * (turn_s - start_s), 1e3 * (end_s - turn_s))

    def memory(self, microbatch: MicroBatch) -> StackMemory:
        """Passes a micro-batch forward and backward under watch.

        Raises:
            OutOfMemoryError: As `times_ms`.
        """
        with _naming_out_of_memory():
            stage, activation, gradient = self._prepared(microbatch)
            stage.load(0, microbatch)
            with LiveMemory() as live:
                sent = stage.forward(0, activation)
                forward_bytes, kept_bytes = live.peak_bytes, live.live_bytes
                live.restart()
                stage.backward(0, gradient)
                del sent
        return StackMemory(
            stage.finish_iteration().peak_bytes,
            forward_bytes - kept_bytes,
            live.peak_bytes - kept_bytes,
        )

    def _prepared(
        self, microbatch: MicroBatch
    ) -> tuple[ModuleStage[TokenBatch], Tensor | None, Tensor | None]:
        """A stage, and what its neighbours would send."""
        shape = (microbatch.n_rows, microbatch.row_tokens, self._width)
        activation = None if self._shape.first else torch.randn(shape, dtype=self._dtype)
        gradient = None if self._shape.last else torch.randn(shape, dtype=self._dtype)
        # Whatever a micro-batch that ran out of memory left behind does not count any more.
        stage: ModuleStage[TokenBatch] = ModuleStage(self._module, self._loader, self._optimizer)
        self._optimizer.parameters.gradients.zero_()
        return stage, activation, gradient


@contextmanager
def _naming_out_of_memory() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        # Only devices have an exception of their own for this.
        if "memory" not in str(error) and not isinstance(error, MemoryError):
            raise
        raise OutOfMemoryError(str(error)) from error


@contextmanager
def sample_loader(lengths: Sequence[int], vocab_size: int) -> Iterator[TokenLoader[TokenBatch]]:
    """Reads samples of random tokens from a dataset on disk, as a run does.

    Sample i has `lengths[i]` tokens.
    """
    random = np.random.default_rng(0)
    halves = [(length // 2, length - length // 2) for length in lengths]
    texts = [[random.integers(0, vocab_size, n).tolist() for n in half] for half in halves]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "samples.h5"
        with DatasetWriter.create(path, DatasetHeader("random", "", vocab_size, 0)) as writer:
            writer.append(TokenBlock.of([(i, t, "profile") for i, t in texts], vocab_size))
        with DatasetFile(path) as dataset:
            loader = TokenLoader(dataset, dataset.eos_id, "token", collate)
            loader.start_iteration([Sample(i, *half) for i, half in enumerate(halves)])
            yield loader
