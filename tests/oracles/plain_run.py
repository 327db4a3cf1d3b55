"""A run computed again from its files, as docs/models.md and docs/formats.md describe them.

Shares no code with the package: numpy, h5py, and plain operations of torch on one sample after
the other.
"""

import hashlib
import json
import math
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import torch
from tests.oracles.plain_models import gpt_losses, t5_losses
from torch import Tensor

KINDS = ("weight", "first_moment", "second_moment")


class Sample(NamedTuple):
    """Tokens after cutting, and the number of the task."""

    inputs: list[int]
    targets: list[int]
    task: int


class Outcome(NamedTuple):
    """Results of an iteration."""

    loss: float
    norm: float
    rate: float


class PlainRun:
    """A run folder and its dataset."""

    def __init__(self, folder: Path, dataset: Path) -> None:
        self._folder = folder
        self._config = tomllib.loads((folder / "config.toml").read_text())
        self.samples, header = _samples_of(dataset, self._config["data"]["max_tokens"])
        self.start_id, self.task_names = header["eos_id"], header["task_names"]
        self.tensors: dict[str, Tensor] = {}
        self.n_done = 0

    def begin(self, shapes: Mapping[str, torch.Size]) -> None:
        """Takes the initial weights of names and shapes."""
        seed, deviation = self._config["training"]["seed"], _deviations(self._config["model"])
        n_shards = self._config["cluster"]["n_shards"]
        for name, shape in shapes.items():
            value = _drawn(name, shape, seed, n_shards, deviation)
            self.tensors |= {f"weight/{name}": value}
            self.tensors |= {f"{kind}/{name}": torch.zeros_like(value) for kind in KINDS[1:]}

    def resume(self, n_done: int) -> None:
        self.tensors, self.n_done = read_checkpoint(self._folder, n_done), n_done

    def step(self) -> Outcome:
        weights = {
            name.removeprefix("weight/"): tensor.clone().requires_grad_()
            for name, tensor in self.tensors.items()
            if name.startswith("weight/")
        }
        loss = self._loss(weights, self.batch())
        gradients = torch.autograd.grad(loss, list(weights.values()))
        norm = math.sqrt(sum(float((g * g).sum()) for g in gradients))
        rate = self._rate()
        limit = self._config["training"]["clip_norm"]
        share = limit / norm if limit and norm > limit else 1.0
        for name, gradient in zip(weights, gradients, strict=True):
            self._update(name, share * gradient, rate)
        self.n_done += 1
        return Outcome(loss.item(), norm, rate)

    def evaluate(
        self, sample_ids: Sequence[int], most_tokens: int
    ) -> tuple[list[float], list[int]]:
        """Sums of losses and numbers of target tokens by task, of the first samples of a list."""
        losses_of: Callable[..., Tensor] = (
            t5_losses if self._config["model"]["family"] == "t5" else gpt_losses
        )
        weights = {
            name.removeprefix("weight/"): tensor
            for name, tensor in self.tensors.items()
            if name.startswith("weight/")
        }
        sums, counts = [0.0] * len(self.task_names), [0] * len(self.task_names)
        for sample in (self.samples[i] for i in sample_ids):
            most_tokens -= len(sample.inputs) + len(sample.targets)
            if most_tokens < 0:
                break
            own = (sample.inputs, sample.targets, self.start_id)
            sums[sample.task] += float(losses_of(weights, self._config["model"], *own).sum())
            counts[sample.task] += len(sample.targets)
        return sums, counts

    def batch(self) -> list[Sample]:
        """Of the next iteration; none of the runs here comes to its second epoch's end."""
        data, k, epoch = self._config["data"], self.n_done, 0
        while k >= len(batches := _batches(list(self.samples.values()), data, epoch)):
            k, epoch = k - len(batches), epoch + 1
        return batches[k]

    def _loss(self, weights: Mapping[str, Tensor], batch: list[Sample]) -> Tensor:
        model, total = self._config["model"], torch.zeros((), dtype=torch.float64)
        losses_of: Callable[..., Tensor] = t5_losses if model["family"] == "t5" else gpt_losses
        counts = Counter[int]()
        for sample in batch:
            counts[sample.task] += len(sample.targets)
        assert self._config["training"]["loss_weighting"] == "task"
        for sample in batch:
            losses = losses_of(weights, model, sample.inputs, sample.targets, self.start_id)
            total = total + losses.sum() / (len(counts) * counts[sample.task])
        return total

    def _rate(self) -> float:
        training = self._config["training"]
        warmup, k, top = training["warmup_iterations"], self.n_done, training["learning_rate"]
        if k < warmup:
            return float(top * (k + 1) / warmup)
        end = training.get("decay_iterations") or training["iterations"]
        p = min(1.0, (k + 1 - warmup) / max(1, end - warmup))
        lowest = training["min_learning_rate_ratio"]
        return float(top * (lowest + (1 - lowest) * (1 + math.cos(math.pi * p)) / 2))

    def _update(self, name: str, gradient: Tensor, rate: float) -> None:
        weight, m, v = (self.tensors[f"{kind}/{name}"] for kind in KINDS)
        (beta1, beta2), t = self._config["training"]["betas"], self.n_done + 1
        decays = "bias" not in name and "norm" not in name
        decay = self._config["training"]["weight_decay"] if decays else 0.0
        m = beta1 * m + (1 - beta1) * gradient
        v = beta2 * v + (1 - beta2) * gradient**2
        corrected = (m / (1 - beta1**t)) / ((v / (1 - beta2**t)).sqrt() + 1e-8)
        weight = (1 - rate * decay) * weight - rate * corrected
        self.tensors |= {f"{k}/{name}": x for k, x in zip(KINDS, (weight, m, v), strict=True)}


def read_checkpoint(folder: Path, n_done: int) -> dict[str, Tensor]:
    """All tensors of a checkpoint of a run folder, whole."""
    found: dict[str, Tensor] = {}
    for index in sorted((folder / "checkpoints" / f"{n_done:06d}").glob("part-*.json")):
        data = index.with_suffix(".bin").read_bytes()
        for name, stored in json.loads(index.read_text())["tensors"].items():
            assert stored["dtype"] == "float64"
            whole = found.setdefault(name, torch.full(stored["shape"], torch.nan).double())
            for first, sizes, start in stored["blocks"]:
                block = np.frombuffer(data, "<f8", math.prod(sizes), start).reshape(sizes)
                place = tuple(slice(i, i + n) for i, n in zip(first, sizes, strict=True))
                whole[place] = torch.tensor(block)
    return found


def _samples_of(dataset: Path, max_tokens: int) -> tuple[dict[int, Sample], dict[str, Any]]:
    """Samples of a dataset and its header."""
    with h5py.File(dataset) as file:
        sides = {}
        for side in ("inputs", "targets"):
            tokens, offsets = file[f"{side}/tokens"][:].tolist(), file[f"{side}/offsets"][:]
            sides[side] = [tokens[a:b] for a, b in pairwise(offsets)]
        samples, rows = {}, zip(*sides.values(), file["task_ids"][:], strict=True)
        for i, (inputs, targets, task) in enumerate(rows):
            if len(targets) <= max_tokens:
                samples[i] = Sample(inputs[: max_tokens - len(targets)], targets, int(task))
        return samples, json.loads(file["header"][()])


def _batches(samples: list[Sample], data: Mapping[str, Any], epoch: int) -> list[list[Sample]]:
    seed = np.random.SeedSequence([data["seed"] % 2**32, epoch, data["seed"] // 2**32])
    words = np.random.Philox(seed).random_raw(len(samples))
    batches: list[list[Sample]] = [[]]
    room = budget = data["tokens_per_batch"]
    for i in np.argsort(words, kind="stable"):
        needed = len(samples[i].inputs) + len(samples[i].targets)
        if needed > room:
            batches.append([])
            room = budget
        batches[-1].append(samples[i])
        room -= needed
    return batches if room == 0 or len(batches) == 1 else batches[:-1]


def _deviations(model: Mapping[str, Any]) -> Callable[[str, torch.Size], float]:
    n, h = model["n_layers"], model["hidden_size"]

    def of_gpt(name: str, _: torch.Size) -> float:
        return 0.02 / math.sqrt(2 * n) if name.endswith("output.weight") else 0.02

    def of_t5(name: str, shape: torch.Size) -> float:
        if name == "embedding.weight":
            return 1.0
        if "bias" in name:
            return 1 / math.sqrt(h)
        is_query = name.endswith("query.weight")
        return 1 / math.sqrt(shape[1] * (model["head_size"] if is_query else 1))

    return of_t5 if model["family"] == "t5" else of_gpt


def _drawn(
    name: str,
    shape: torch.Size,
    seed: int,
    n_shards: int,
    deviation: Callable[[str, torch.Size], float],
) -> Tensor:
    if name.endswith("norm.weight"):
        return torch.ones(shape, dtype=torch.float64)
    if name.endswith("bias"):
        return torch.zeros(shape, dtype=torch.float64)
    cut = _cut_of(name)
    if n_shards == 1 or cut is None:
        values = _normal(f"{seed}/{name}", shape)
    else:
        of_shards = [f"{seed}/{name}/{s}/{n_shards}" for s in range(n_shards)]
        shapes = cut.shapes(shape, n_shards)
        values = _joined(list(map(_normal, of_shards, shapes)), cut)
    return (values * deviation(name, shape)).double()


class Cut(NamedTuple):
    """Division of a weight among shards: along a dimension, in so many blocks separately."""

    dimension: int
    n_blocks: int

    def shapes(self, shape: torch.Size, n_shards: int) -> list[torch.Size]:
        """Shapes of the parts; the last may be smaller."""
        block = shape[self.dimension] // self.n_blocks
        most = -(-block // n_shards)
        ends = [min(block, s * most) for s in range(n_shards + 1)]
        sizes = [self.n_blocks * (end - start) for start, end in pairwise(ends)]
        before, after = shape[: self.dimension], shape[self.dimension + 1 :]
        return [torch.Size((*before, size, *after)) for size in sizes]


def _cut_of(name: str) -> Cut | None:
    map_of_layer = name.removesuffix(".weight").rsplit(".", 1)[-1]
    if name in ("embedding.tokens.weight", "embedding.weight", "head.logits.weight"):
        return Cut(0, 1)
    if "bias" in name or map_of_layer == "output":
        return Cut(1, 1)
    n_blocks = {"query_key_value": 3, "key_value": 2, "query": 1, "inner": 1}
    return Cut(0, n_blocks[map_of_layer]) if map_of_layer in n_blocks else None


def _joined(parts: list[Tensor], cut: Cut) -> Tensor:
    """Block by block, the parts of all shards."""
    blocks = [part.chunk(cut.n_blocks, cut.dimension) for part in parts]
    return torch.cat([block for same in zip(*blocks, strict=True) for block in same], cut.dimension)


def _normal(text: str, shape: torch.Size) -> Tensor:
    digest = hashlib.sha256(text.encode()).digest()
    stream = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))
    return torch.randn(shape, generator=stream)
