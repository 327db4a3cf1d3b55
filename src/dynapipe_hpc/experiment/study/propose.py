"""A first configuration for a dataset, a model and a number of ranks."""

import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from math import ceil
from pathlib import Path

import numpy as np
import tomli_w
from pydantic import ValidationError

from dynapipe_hpc.data.atomic_write import atomic_write
from dynapipe_hpc.data.dataset.dataset_file import DatasetFile
from dynapipe_hpc.data.dataset.sampler import hashes_of
from dynapipe_hpc.data.errors import InputError, escaped, quoted
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.experiment import Experiment, check_dataset
from dynapipe_hpc.experiment.load import ALTERNATIVES, load_config
from dynapipe_hpc.experiment.study.predict import Variant, divisions
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.choose.config import SearchConfig
from dynapipe_hpc.training.huggingface.origin import Origin, find_origin
from dynapipe_hpc.training.huggingface.transformers import FAMILY

_UNCUT = {True: (1.0, 0.999), False: (0.999,)}
"""Shares of uncut samples, with a model or without, to try until a plan is found."""
_TOKENS_PER_RANK = 8192
_FEWEST_BATCHES = 16
"""Fewest batches per epoch of tuning, so that even few samples make more than a few batches."""
_HELD_OUT, _FEWEST_HELD_OUT, _MAX_HELD_OUT = 0.001, 50, 0.2
_EPOCHS, _ITERATIONS = 3, 100
_WARMUP_SHARE = 0.03
_RATES = {False: (2e-5, 2e-4), True: (1e-6, 5e-6)}
"""Learning rates of all weights and of adapters, by whether samples are pairs: as in `trl`."""
_MODES, _MODES_OF_LIBRARY = '["none", "selective", "full"]', '["none", "full"]'
_MIN_MEMORY_BYTES = 1_000_000
_GPU_BYTES = 12_000_000_000
"""Smallest memory with which a rank is taken for a GPU."""

_DATA = """\
# {dataset}: {n_samples} samples of {mean} tokens on average, the longest {longest}.
# Every key is described by `dynapipe-hpc config KEY`. Next:
#
#   dynapipe-hpc plan {output} --explain
#   dynapipe-hpc tune {output}
#   mpiexec -n {n_ranks} dynapipe-hpc run {output} -o runs/first

[data]
dataset = {dataset}
max_tokens = {max_tokens}{cut}
tokens_per_batch = {tokens_per_batch}  # real tokens of one optimizer step, over all ranks

[model]
"""
_SMALL_MODEL = """\
# A small GPT for a first try; configs/models/ has published ones, and init --model FOLDER takes the
# sizes and weights of a Hugging Face model.
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
_LORA = """
# Adapters; all other weights stay as they are.
[model.lora]
rank = {lora}
alpha = {alpha}
"""
_CLUSTER = """
# {n_ranks} ranks: replicas x stages x shards. `tune` compares the ways to divide them.
[cluster]
n_replicas = {n_replicas}
n_stages = {n_stages}
n_shards = {n_shards}
zero_stage = {zero_stage}  # 1: replicas divide the optimizer's state among them
device_memory_bytes = {memory}  # of one rank

"""
_CPU_COST = """\
# Estimated for a CPU core. Measure instead, with `dynapipe-hpc profile {output} -o costs.h5`, and
# then set kind = "profiled" and path = "costs.h5"; configs/clusters/ has rates of GPUs.
[planner.cost]
kind = "analytic"
recompute = {recompute}
"""
_GPU_COST = """\
# Estimated for an A100; configs/clusters/ has rates of other GPUs. Measure instead, with
# `dynapipe-hpc profile {output} -o costs.h5`, and then set kind = "profiled" and path = "costs.h5".
[planner.cost]
kind = "analytic"
recompute = {recompute}
flops_per_ms = 2e11
memory_bytes_per_ms = 1.6e9
launch_ms = 0.6
"""
_REST = """
[planner.batch]
rule = "dynamic"
layouts = {layouts}

[training]
{training}
warmup_iterations = {warmup}

# A share of the samples is never trained on; a run prints its loss before, during and at the end.
[evaluation]
held_out = {share}
tokens = {n_tokens}  # limit: all held-out samples
every = {every}

[checkpoint]
every = {every}
"""


@dataclass(frozen=True, slots=True)
class Wish:
    """Facts that a user knows before there is a configuration; no `model` means a small new one."""

    dataset: Path
    n_ranks: int
    memory: str
    model: Path | None = None
    lora: int | None = None  # rank of adapters; None to train all weights
    on_gpus: bool | None = None  # whether ranks are GPUs; None to tell by their memory
    sets: Sequence[str] = ()


def propose(wish: Wish, output: Path) -> Cluster:
    """Writes a configuration whose first iteration can be planned; returns its division.

    Of all divisions of the model over the ranks, it has the one that is predicted to take the
    shortest time for the first batch with the longest sample added.
    """
    if output.exists():
        raise InputError(f"{output}: already exists; name another file: -o FILE.toml")
    origin = find_origin(wish.model) if wish.model is not None else None
    whole, reasons = _whole_cluster(wish), [""]
    with DatasetFile(wish.dataset) as dataset, atomic_write(output) as new:
        for uncut in _UNCUT[origin is not None]:
            text = _text(wish, dataset, origin, uncut, whole=whole, output=output)
            new.write_text(text(whole, 1), encoding="utf-8")
            try:
                files = Experiment(load_config(new))
            except InputError as error:
                raise InputError(str(error).replace(str(new), str(output))) from None
            check_dataset(files.config, files.origin, dataset)
            times, reasons = _tried(files, whole)
            if times:
                fastest, _ = min(times, key=lambda tried: tried[1])
                # Known only with all that the user has set.
                n_iterations = files.training.n_iterations
                new.write_text(text(fastest, n_iterations), encoding="utf-8")
                return fastest
        raise InputError(
            f"no division of the model over {wish.n_ranks} ranks of {wish.memory} can be planned. "
            f"The last reason: {reasons[-1]}"
        )


def _tried(files: Experiment, whole: Cluster) -> tuple[list[tuple[Cluster, float]], list[str]]:
    times: list[tuple[Cluster, float]] = []
    reasons: list[str] = []
    planner = files.config.planner.model_copy(update={"search": SearchConfig(effort=0)})
    for cluster in map(_with_zero, divisions(whole)):
        try:
            variant = Variant("dynamic", planner, cluster)
            experiment = files.variant(variant.applied_to(files.config)).open()
            samples = experiment.sampler.iteration(0)
            kept, inputs, targets, rejected = files.used
            i = int(kept[np.argmax((inputs + targets + rejected)[kept])])
            longest = Sample(i, int(inputs[i]), int(targets[i]), rejected_tokens=int(rejected[i]))
            if all(sample.sample_id != longest.sample_id for sample in samples):
                samples = [*samples, longest]
            times.append((cluster, experiment.planner.choose(samples).best.iteration_ms))
        except InputError as error:
            reasons.append(str(error))
    return times, reasons


def _with_zero(cluster: Cluster) -> Cluster:
    return cluster.model_copy(update={"zero_stage": int(cluster.n_replicas > 1)})


def _whole_cluster(wish: Wish) -> Cluster:
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
    return _with_zero(whole)


def _text(
    wish: Wish,
    dataset: DatasetFile,
    origin: Origin | None,
    uncut: float,
    *,
    whole: Cluster,
    output: Path,
) -> Callable[[Cluster, int], str]:
    lengths = dataset.input_lengths + dataset.target_lengths + dataset.rejected_lengths
    if len(lengths) == 1:
        raise InputError(
            f"{wish.dataset}: has one sample, but one is held out from training; add samples, or "
            "cut a long text into several"
        )
    max_tokens = max(1, int(np.quantile(lengths, uncut, method="higher")))
    if origin is not None:
        max_tokens = min(max_tokens, origin.shape.max_tokens)
    n_cut, total = (lengths > max_tokens).sum(), int(lengths.clip(max=max_tokens).sum())
    n_batches = 1 if wish.model is None else _FEWEST_BATCHES
    batch = max(min(_TOKENS_PER_RANK * wish.n_ranks, total // n_batches), max_tokens)
    share = min(max(_HELD_OUT, _FEWEST_HELD_OUT / len(lengths)), _MAX_HELD_OUT)
    # Of few samples, the share may hold out none: one for each replica, but no more than half.
    n_least = max(1, min(wish.n_ranks, len(lengths) // 2))
    least = np.sort(hashes_of(np.arange(len(lengths))))[n_least - 1] / 2**64
    share = max(share, ceil(100 * least + 1e-9) / 100)
    on_gpus = whole.device_memory_bytes >= _GPU_BYTES if wish.on_gpus is None else wish.on_gpus
    model = _SMALL_MODEL if wish.model is None else _MODEL
    cost = _GPU_COST if on_gpus else _CPU_COST
    is_foreign = origin is not None and origin.mapping.family == FAMILY
    text = "".join([_DATA, model, _LORA if wish.lora else "", _CLUSTER, cost, _REST])
    values = {
        "output": escaped(str(output)),
        "dataset": _toml(str(wish.dataset)),
        "n_samples": f"{len(lengths):,}",
        "mean": f"{lengths.mean():.0f}",
        "longest": f"{lengths.max():,}",
        "max_tokens": max_tokens,
        "cut": f"  # {n_cut:,} longer samples are cut: data.long_samples" if n_cut else "",
        "tokens_per_batch": batch,
        "vocab_size": dataset.header.vocab_size,
        "row_tokens": -(-max_tokens // 8) * 8,
        "model": _toml(str(wish.model)),
        "lora": wish.lora,
        "alpha": 2 * (wish.lora or 0),
        "n_ranks": wish.n_ranks,
        "memory": _toml(wish.memory),
        "recompute": _MODES_OF_LIBRARY if is_foreign else _MODES,
        "layouts": '["packed"]' if dataset.header.has_pairs else '["padded", "packed"]',
        "training": "\n".join(_training(wish, dataset.header.has_pairs, on_gpus=on_gpus)),
        "share": f"{share:.2g}",
        "n_tokens": total,
    }

    def of_division(cluster: Cluster, n_iterations: int) -> str:
        steps = {"warmup": ceil(_WARMUP_SHARE * n_iterations), "every": max(1, n_iterations // 5)}
        return reduce(_with_value, wish.sets, text.format(**values, **steps, **dict(cluster)))

    return of_division


def _training(wish: Wish, has_pairs: bool, *, on_gpus: bool) -> Iterator[str]:
    if has_pairs:
        yield 'objective = "dpo"'
    if on_gpus:
        yield 'dtype = "bfloat16"'
    if wish.model is None:
        yield f"iterations = {_ITERATIONS}  # or epochs, or tokens"
        yield "learning_rate = 3e-4"
    else:
        yield f"epochs = {_EPOCHS}  # or iterations, or tokens"
        yield f"learning_rate = {_RATES[has_pairs][wish.lora is not None]:g}"
        yield "weight_decay = 0.0"


def _with_value(text: str, override: str) -> str:
    name, _, value = override.partition("=")
    table, _, key = name.strip().rpartition(".")
    heading, line = f"[{table}]", f"{key} = {value.strip()}"
    try:
        tomllib.loads(line)
    except ValueError:  # a word without quotes
        line = f"{key} = {_toml(value.strip())}"
    lines = text.splitlines()
    if heading not in lines:
        return f"{text}\n{heading}\n{line}\n"
    start = lines.index(heading) + 1
    end = next((i for i in range(start, len(lines)) if lines[i].startswith("[")), len(lines))
    # One of a table's alternatives takes the place of another.
    same_choice = next((keys for keys in [ALTERNATIVES.get(table, ())] if key in keys), (key,))
    places = (i for i in range(start, end) if lines[i].partition("=")[0].strip() in same_choice)
    place = next(places, None)
    lines[start if place is None else place : start if place is None else place + 1] = [line]
    return "\n".join(lines) + "\n"


def _toml(text: str) -> str:
    return tomli_w.dumps({"x": text}).strip().removeprefix("x = ")
