"""A stack of layers alone on a rank, run as the executor runs a stage, and measured."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.part import Boundary
from dynapipe_hpc.data.dataset.dataset_file import DatasetFile
from dynapipe_hpc.data.dataset.dataset_header import DatasetHeader
from dynapipe_hpc.data.dataset.dataset_writer import DatasetWriter
from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.data.microbatch import MicroBatch, PackedRow, Slice
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.data.token_block import TokenBlock, TokenizedSample
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.rank.devices import CPU, dtype_of, wait_for
from dynapipe_hpc.models.batch import IterationTokens
from dynapipe_hpc.models.family import family_of
from dynapipe_hpc.models.live_memory import LiveMemory
from dynapipe_hpc.models.sharding.shards import ONE_SHARD, Shards
from dynapipe_hpc.planner.batch.row_length import padded
from dynapipe_hpc.planner.cost.slice_costs import near_pairs
from dynapipe_hpc.training.allocated_memory import LiveAllocations
from dynapipe_hpc.training.collectives import SingleRankCollectives
from dynapipe_hpc.training.module_stage import ModuleStage
from dynapipe_hpc.training.optimizer import Optimizer
from dynapipe_hpc.training.token_loader import token_weights


class OutOfMemoryError(RuntimeError):
    """A micro-batch needs more memory than a stack of layers leaves."""


class _ElsewhereError(OutOfMemoryError):
    pass


class AgreeingShards:
    """The shards of a stage; within `fail_together`, none waits for one that ran out of memory.

    There, before every collective operation and at the end, all shards tell each other whether they
    continue, and all raise an `OutOfMemoryError` if one does not. That takes time and makes the
    host wait for the device, so it is not done elsewhere.
    """

    def __init__(self, shards: Shards, device: torch.device) -> None:
        self._shards = shards
        self.shard, self.n_shards = shards.shard, shards.n_shards
        self.sequence_parallel = shards.sequence_parallel
        self._n_failed = torch.zeros(1, device=device)
        self._is_agreeing = False

    def sum_over_shards(self, values: Tensor) -> Tensor:
        self._check_room(values, n_tensors=1)
        return self._shards.sum_over_shards(values)

    def sum_own_over_shards(self, values: Tensor) -> Tensor:
        self._check_room(values, n_tensors=1)
        return self._shards.sum_own_over_shards(values)

    def gather_over_shards(self, values: Tensor) -> Tensor:
        self._check_room(values, n_tensors=self.n_shards)
        return self._shards.gather_over_shards(values)

    @contextmanager
    def fail_together(self) -> Iterator[None]:
        """Block of the same collectives on all shards; if one runs out of memory, all raise."""
        self._is_agreeing = True
        try:
            yield
            self._check_others()
        except _ElsewhereError:
            raise
        except OutOfMemoryError:
            self._tell(1)
            raise
        finally:
            self._is_agreeing = False

    @contextmanager
    def not_waiting(self) -> Iterator[None]:
        """A context without exchanges; lack of memory is a `RunError` if shards may wait."""
        try:
            yield
        except OutOfMemoryError as error:
            if self.n_shards == 1:
                raise
            raise RunError(
                f"a micro-batch that fitted before no longer fits into memory: {error}; free "
                "memory and start again"
            ) from error

    def _check_room(self, values: Tensor, n_tensors: int) -> None:
        if self._is_agreeing:
            # A shard without memory fails here, before the others wait for it.
            values.new_empty((n_tensors, *values.shape))
            self._check_others()

    def _check_others(self) -> None:
        if self._tell(0):
            raise _ElsewhereError("another shard ran out of memory")

    def _tell(self, n_failed: int) -> float:
        return self._shards.sum_over_shards(self._n_failed.fill_(n_failed)).item()


class StackShape(NamedTuple):
    n_layers: int
    first: bool = False
    last: bool = False
    boundary: Boundary = Boundary.ROWS

    def layers(self, shape: ModelShape) -> range:
        """Layers of a model; in a decoder not the first layer, which has another embedding."""
        start = shape.n_layers + 1 if self.boundary is Boundary.PAIR else 0
        return range(start, start + self.n_layers)


# Stacks of one and two layers separate a layer from fixed costs; the others add one part each.
STACKS = (
    StackShape(n_layers=1),
    StackShape(n_layers=2),
    StackShape(n_layers=0, first=True),
    StackShape(n_layers=0, last=True),
)
# The same for an encoder-decoder model, whose decoder is measured separately.
ENCODER_STACKS = (*STACKS[:3], StackShape(n_layers=0, last=True, boundary=Boundary.PAIR))
DECODER_STACKS = (
    StackShape(n_layers=1, boundary=Boundary.PAIR),
    StackShape(n_layers=2, boundary=Boundary.PAIR),
)
CPU_ALLOCATOR = "DefaultCPUAllocator"  # in torch's message that a processor lacks memory
CPU_IN_FLIGHT = 2  # caches of GPUs hold little of even one
DEEP_ENOUGH = 4  # so that no stack of an encoder holds its last layer
N_SLICES = 4


class StackMemory(NamedTuple):
    stored_bytes: float
    forward_transient_bytes: float
    backward_transient_bytes: float


class Stack:
    """Some layers, with the embedding or the head, as a stage of their own."""

    def __init__(
        self,
        config: ExperimentConfig,
        stack: StackShape,
        tokens: IterationTokens,
        *,
        model: ModelShape | None = None,
        shards: Shards = ONE_SHARD,
        device: torch.device = CPU,
    ) -> None:
        """Builds a shard of the layers, which read `tokens`.

        The layers are those of `model`, or of the configuration's model. The shards of a stage
        measure together.
        """
        self._shape = stack
        self._shards = AgreeingShards(shards, device)
        self._width = config.model.hidden_size
        self._n_stream_shards = config.cluster.n_stream_shards
        self._token_multiple = config.planner.token_multiple
        self._dtype = dtype_of(config)
        self._tokens = tokens
        self._device = device
        # On a GPU, libraries take workspaces in the first passes, and keep them.
        self._has_workspaces = device == CPU
        model = (model or config.model).with_layers(DEEP_ENOUGH)
        self.window = model.window
        self._module = family_of(model)(
            model,
            stack.layers(model),
            first=stack.first,
            last=stack.last,
            shards=self._shards,
            dtype=self._dtype,
            device=device,
        )
        self._optimizer = Optimizer(self._module, config.training, SingleRankCollectives())

    def times_ms(self, microbatch: MicroBatch) -> tuple[float, float]:
        """Times the forward pass of a micro-batch, with reading its tokens, and the backward pass.

        If the micro-batch is too large, raises an `OutOfMemoryError`, after which smaller ones can
        still run; or a `RunError` if other shards may be waiting for this one.
        """
        forward_ms, backward_ms, _ = self._passes_ms(microbatch, split_backward=False)
        return forward_ms, backward_ms

    def halves_ms(self, microbatch: MicroBatch) -> tuple[float, float, float]:
        """Times the passes of a micro-batch whose backward pass is split; raises as `times_ms`.

        Returns the times of the forward pass, the backward pass, and its deferred part: gradients
        of weights. Only layers defer these, so stacks without layers are not run and return NaN.
        """
        if not self._shape.n_layers:
            return np.nan, np.nan, np.nan
        return self._passes_ms(microbatch, split_backward=True)

    def pair_ms(self, microbatch: MicroBatch) -> tuple[float, float]:
        """Times per pair of a token of a slice and a token before it that it sees; see `times_ms`.

        The sample of a packed row runs as equal slices, which differ in how much comes before.
        """
        assert isinstance(microbatch, PackedRow)  # noqa: S101 - slices are of packed rows
        slices = equal_slices(microbatch, N_SLICES, self._token_multiple)
        times = np.array(self.slices_ms(slices))
        n_tokens = np.array([float(part.row_tokens) for part in slices])
        before = np.array([float(part.slice.begin) for part in slices if part.slice])
        pairs = near_pairs(n_tokens, before, self.window)
        forward_ms, backward_ms = np.polyfit(pairs, times, 1)[0].clip(0).tolist()
        return forward_ms, backward_ms

    def slices_ms(self, slices: Sequence[PackedRow]) -> list[tuple[float, float]]:
        """Times the passes of all slices of a sample, one after the other; raises as `times_ms`."""
        order = range(len(slices))
        with self._shards.not_waiting(), _naming_out_of_memory():
            stage = self._new_stage()
            received = [self._received(part) for part in slices]
            moments_s = [self._moment_s()]
            for i in order:
                stage.load(i, slices[i])
                stage.forward(i, received[i][0])
                moments_s.append(self._moment_s())
            for i in reversed(order):
                stage.backward(i, received[i][1])
                moments_s.append(self._moment_s())
        took_ms = 1e3 * np.diff(moments_s)
        n = len(slices)
        return list(zip(took_ms[:n], took_ms[: -n - 1 : -1], strict=True))

    def memory(self, microbatch: MicroBatch) -> StackMemory:
        """Measures the memory of both passes; all shards run out of memory, or none does."""
        with self._shards.fail_together(), _naming_out_of_memory():
            if not self._has_workspaces:
                self._memory(microbatch)
                self._has_workspaces = True
            return self._memory(microbatch)

    def _memory(self, microbatch: MicroBatch) -> StackMemory:
        stage = self._new_stage()
        activation, gradient = self._received(microbatch)
        stage.load(0, microbatch)
        with LiveMemory() if self._device == CPU else LiveAllocations(self._device) as live:
            sent = stage.forward(0, activation)
            forward_bytes, kept_bytes = live.peak_bytes, live.live_bytes
            live.restart()
            stage.backward(0, gradient)
            del sent
        # Bytes that autograd keeps; a GPU's allocator does not count the received activation.
        stored_bytes = kept_bytes + (0 if activation is None else activation.nbytes)
        if self._device == CPU:
            stored_bytes = stage.finish_iteration().peak_bytes
        return StackMemory(stored_bytes, forward_bytes - kept_bytes, live.peak_bytes - kept_bytes)

    def _passes_ms(
        self, microbatch: MicroBatch, *, split_backward: bool
    ) -> tuple[float, float, float]:
        """Times of a micro-batch: forward, backward, and the deferred part of a split backward.

        On a CPU, more than one is in flight, so that caches hold no more than in a pipeline.
        """
        in_flight = range(CPU_IN_FLIGHT if self._device == CPU else 1)
        with self._shards.not_waiting(), _naming_out_of_memory():
            stage = self._new_stage()
            received = [self._received(microbatch) for _ in in_flight]
            start_s = self._moment_s()
            for i in in_flight:
                stage.load(i, microbatch)
                stage.forward(i, received[i][0], split_backward=split_backward)
            turn_s = self._moment_s()
            backward_s = 0.0
            for i in in_flight:
                begin_s = self._moment_s()
                stage.backward(i, received[i][1])
                backward_s += self._moment_s() - begin_s
                if split_backward:
                    stage.backward_weight(i)
            rest_s = self._moment_s() - turn_s - backward_s
        forward_ms, backward_ms, rest_ms = (
            1e3 * took_s / len(in_flight) for took_s in (turn_s - start_s, backward_s, rest_s)
        )
        return forward_ms, backward_ms, rest_ms

    def _moment_s(self) -> float:
        wait_for(self._device)
        return time.perf_counter()

    def _new_stage(self) -> ModuleStage:
        load = partial(self._module.collate, tokens=self._tokens)
        stage: ModuleStage = ModuleStage(self._module, load, self._optimizer)
        self._optimizer.parameters.gradients.zero_()
        return stage

    def _received(self, microbatch: MicroBatch) -> tuple[Tensor | None, Tensor | None]:
        shape = self._shape.boundary.shape(microbatch, self._width, self._n_stream_shards)
        activation = None if self._shape.first else self._random(shape)
        return activation, None if self._shape.last else self._random(shape)

    def _random(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, dtype=self._dtype, device=self._device)


def equal_slices(row: PackedRow, n_slices: int, multiple: int) -> list[PackedRow]:
    """Equal slices of a sample that fills a row; the last may be shorter."""
    *_, n_tokens = row.offsets
    slice_tokens = padded(-(-n_tokens // n_slices), multiple)
    return [
        PackedRow(
            row.sample_ids,
            padded(end - begin, multiple),
            (0, end - begin),
            row.recompute,
            slice=Slice(begin, end, n_tokens),
        )
        for begin, end in pairwise([*range(0, n_tokens, slice_tokens), n_tokens])
    ]


@contextmanager
def _naming_out_of_memory() -> Iterator[None]:
    try:
        yield
    except OutOfMemoryError:
        raise
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise OutOfMemoryError(str(error)) from error
    except RuntimeError as error:
        # CPUs have no exception of their own. Other errors may mention memory, too: an illegal
        # access is a fault, not a lack of memory.
        if CPU_ALLOCATOR not in str(error):
            raise
        raise OutOfMemoryError(str(error)) from error


@contextmanager
def tokens_on_disk(sizes: Sequence[tuple[int, int]], vocab_size: int) -> Iterator[IterationTokens]:
    """Samples of random tokens with (input, target) sizes, read from a dataset on disk."""
    random = np.random.default_rng(0)
    texts = [[random.integers(0, vocab_size, n).tolist() for n in both] for both in sizes]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "samples.h5"
        with DatasetWriter.create(path, DatasetHeader("random", "", vocab_size, 0, 0)) as writer:
            made = [TokenizedSample(inputs, targets, "profile") for inputs, targets in texts]
            writer.append(TokenBlock.from_samples(made, vocab_size))
        with DatasetFile(path) as dataset:
            samples = [Sample(i, *both) for i, both in enumerate(sizes)]
            weights = token_weights(samples, "token")
            by_id = dict(enumerate(samples))
            # As in training, so that dropout is measured.
            yield IterationTokens(by_id, weights, dataset.read, 0, iteration=0)
