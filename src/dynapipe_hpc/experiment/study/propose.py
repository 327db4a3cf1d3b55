"""A first configuration for a dataset and a number of ranks."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tomli_w
from pydantic import ValidationError

from dynapipe_hpc.data.atomic_write import atomic_write
from dynapipe_hpc.data.dataset.dataset_file import DatasetFile
from dynapipe_hpc.data.errors import InputError, escaped, quoted
from dynapipe_hpc.experiment.experiment import open_experiment
from dynapipe_hpc.experiment.files import ExperimentFiles, check_dataset
from dynapipe_hpc.experiment.load import load_config
from dynapipe_hpc.experiment.study.variants import divisions
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.training.huggingface.origin import find_origin

_UNCUT = 0.999
_TOKENS_PER_RANK = 8192
_MIN_MEMORY_BYTES = 1_000_000
_SMALL_MODEL = """\
# A small GPT for a first try; configs/models/ has published ones, and init --model FOLDER takes the
# sizes and weights of a model of Hugging Face.
n_layers = 8
hidden_size = 256
n_heads = 4
ffn_size = 1024
vocab_size = {vocab_size}
max_tokens = {row_tokens}  # longest row
"""
_MODEL = """\
# A new run begins with these weights, and the sizes are those of this model.
init_from = {model}
"""
_TEXT = """\
# {dataset}: {n_samples} samples of {mean} tokens on average, the longest {longest}.
# Every key is described by `dynapipe-hpc config KEY`. Next:
#
#   dynapipe-hpc plan {output} --explain
#   dynapipe-hpc tune {output}
#   mpiexec -n {n_ranks} dynapipe-hpc run {output} -o runs/first

[data]
dataset = {dataset}
max_tokens = {max_tokens}  # {n_cut} longer samples are cut: data.long_samples
tokens_per_batch = {tokens_per_batch}  # real tokens of one optimizer step, over all ranks

[model]
{model}
# {n_ranks} ranks: replicas x stages x shards. `tune` compares the ways to divide them.
[cluster]
n_replicas = {n_replicas}
n_stages = {n_stages}
n_shards = {n_shards}
device_memory_bytes = {memory}  # of one rank

# Estimated for a CPU core. Measure instead, with `dynapipe-hpc profile {output} -o costs.h5`, and
# then set kind = "profiled" and path = "costs.h5"; configs/clusters/ has rates of GPUs.
[planner.cost]
kind = "analytic"
recompute = ["none", "selective", "full"]

[planner.batch]
rule = "dynamic"

[training]
iterations = 100  # or epochs, or tokens
learning_rate = 3e-4
warmup_iterations = 10

[checkpoint]
every = 50
"""


@dataclass(frozen=True, slots=True)
class Wish:
    """Facts that a user knows before there is a configuration; no model is a small new one."""

    dataset: Path
    n_ranks: int
    memory: str
    model: Path | None = None


def propose(wish: Wish, output: Path) -> Cluster:
    """Writes a configuration whose first iteration can be planned; returns its division.

    Of the divisions of the model over the ranks it has the first with a plan within memory: no
    shards before shards, and as few stages as possible.
    """
    if output.exists():
        raise InputError(f"{output}: already exists; name another file: -o FILE.toml")
    if wish.model is not None:
        find_origin(wish.model)
    reasons = []
    with DatasetFile(wish.dataset) as dataset, atomic_write(output) as new:
        for cluster in _divisions(wish):
            new.write_text(_text(wish, dataset, cluster, output), encoding="utf-8")
            try:
                files = ExperimentFiles(load_config(new))
            except InputError as error:
                reasons.append(str(error).replace(str(new), str(output)))
                continue
            check_dataset(files, dataset)  # no other division would help
            try:
                experiment = open_experiment(files)
                experiment.planner.choose(experiment.sampler.iteration(0))
            except InputError as error:
                reasons.append(str(error).replace(str(new), str(output)))
            else:
                return cluster
        raise InputError(
            f"no division of the model over {wish.n_ranks} ranks of {wish.memory} can be planned; "
            f"raise --memory or --ranks. The last reason: {reasons[-1]}"
        )


def _divisions(wish: Wish) -> Iterator[Cluster]:
    try:
        whole = Cluster.model_validate(
            {"n_replicas": wish.n_ranks, "device_memory_bytes": wish.memory}
        )
    except ValidationError:
        raise InputError(
            f"--memory {quoted(wish.memory)}: must be a size such as 80GB, 80GiB or 512MiB"
        ) from None
    if whole.device_memory_bytes < _MIN_MEMORY_BYTES:
        raise InputError(
            f"--memory {quoted(wish.memory)}: is {whole.device_memory_bytes:,} bytes, too few for "
            f"any model; write the unit, too, such as {whole.device_memory_bytes}GB"
        )
    yield from sorted(divisions(whole), key=lambda cluster: (cluster.n_shards, cluster.n_stages))


def _text(wish: Wish, dataset: DatasetFile, cluster: Cluster, output: Path) -> str:
    lengths = dataset.input_lengths + dataset.target_lengths
    max_tokens = max(1, int(np.quantile(lengths, _UNCUT, method="higher")))
    row_tokens = -(-max_tokens // 8) * 8
    tokens = min(int(lengths.sum()), _TOKENS_PER_RANK * wish.n_ranks)
    model = (_SMALL_MODEL if wish.model is None else _MODEL).format(
        vocab_size=dataset.vocab_size, row_tokens=row_tokens, model=_toml(str(wish.model))
    )
    return _TEXT.format(
        output=escaped(str(output)),
        dataset=_toml(str(wish.dataset)),
        n_samples=f"{len(lengths):,}",
        mean=f"{lengths.mean():.0f}",
        longest=f"{lengths.max():,}",
        n_cut=f"{(lengths > max_tokens).sum():,}",
        max_tokens=max_tokens,
        tokens_per_batch=max(tokens, max_tokens),
        model=model,
        n_ranks=wish.n_ranks,
        n_replicas=cluster.n_replicas,
        n_stages=cluster.n_stages,
        n_shards=cluster.n_shards,
        memory=_toml(wish.memory),
    )


def _toml(text: str) -> str:
    return tomli_w.dumps({"x": text}).strip().removeprefix("x = ")
