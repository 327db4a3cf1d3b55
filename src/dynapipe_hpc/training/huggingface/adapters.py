"""Adapters of a checkpoint, as the files of `peft` name and hold them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.data.atomic_write import writing
from dynapipe_hpc.training.huggingface.origin import Origin
from dynapipe_hpc.training.huggingface.write_tensors import ReadRows
from dynapipe_hpc.training.small_files import ADAPTER_CONFIG, ADAPTER_MODEL

_PREFIX = "base_model.model"  # of what `peft` has wrapped
_TASKS = {True: "SEQ_2_SEQ_LM", False: "CAUSAL_LM"}


class AdapterMap(NamedTuple):
    """Adapter of a weight, and the linear layer of Hugging Face that it belongs to.

    Attributes:
        name: Name of the adapter, before those of its matrices.
        weight: Name of the weight that it adds to.
        start: Index of the first row of that weight that it adds to.
        n_rows: Number of rows that it adds to.
        module: Name of the linear layer.
        is_trained: Whether the model has the adapter.
    """

    name: str
    weight: str
    start: int
    n_rows: int
    module: str
    is_trained: bool


def adapter_maps(origin: Origin, lora: Lora) -> Iterator[AdapterMap]:
    """All linear layers of a model that may have adapters."""
    layers = origin.shape.linear_layers
    for weight in origin.page.tensors(origin.shape):
        layer = weight.name.removesuffix(".weight")
        for blocks in (blocks for end, blocks in layers.items() if layer.endswith(end)):
            start = 0
            for block, (source, n_rows) in zip(blocks, weight.sources.items(), strict=True):
                module, name = source.removesuffix(".weight"), f"{layer}.adapters.{block}"
                yield AdapterMap(name, weight.name, start, n_rows, module, lora.adapts(block))
                start += n_rows


def write_adapters(
    folder: Path, origin: Origin, lora: Lora, read: ReadRows, *, dtype: str, base: str | None
) -> None:
    """Writes adapters as files that `peft` loads beside the model.

    Args:
        folder: An existing folder.
        origin: The model.
        lora: Adapters of the model.
        read: Reader of their matrices.
        dtype: Type of the numbers in the file.
        base: Path or name of the model with the weights that are frozen; None if it is not known.
    """
    maps = list(adapter_maps(origin, lora))
    tensors = {
        f"{_PREFIX}.{each.module}.lora_{matrix.upper()}.weight": values.to(getattr(torch, dtype))
        for each in maps
        if each.is_trained
        for matrix, values in zip("ab", _matrices(each, lora, read), strict=True)
    }
    values = {
        "peft_type": "LORA",
        "task_type": _TASKS[origin.shape.has_target_rows],
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted(_target_modules(maps)),
        "fan_in_fan_out": any(each.transposed for each in origin.page.tensors(origin.shape)),
        "bias": "none",
        "base_model_name_or_path": base,
        "inference_mode": True,
    }
    with writing(folder):
        save_file(tensors, folder / ADAPTER_MODEL, metadata={"format": "pt"})
        (folder / ADAPTER_CONFIG).write_text(f"{json.dumps(values, indent=2)}\n")


def merging(origin: Origin, lora: Lora, base: ReadRows, read: ReadRows) -> ReadRows:
    """Reader of the weights of a model with its adapters added to them.

    Args:
        origin: The model.
        lora: Adapters of the model.
        base: Reader of the weights that are frozen.
        read: Reader of the matrices of adapters.
    """
    maps: dict[str, list[AdapterMap]] = {}
    for each in adapter_maps(origin, lora):
        if each.is_trained:
            maps.setdefault(each.weight, []).append(each)

    def merged(name: str, start: int, stop: int) -> Tensor:
        values = base(name, start, stop)
        for each in maps.get(name, ()):
            first, last = max(start, each.start), min(stop, each.start + each.n_rows)
            if first < last:
                a, b = _matrices(each, lora, read)
                rows = b[first - each.start : last - each.start]
                values = values.to(torch.promote_types(values.dtype, b.dtype))
                values[first - start : last - start] += lora.scale * (rows @ a)
        return values

    return merged


def _matrices(each: AdapterMap, lora: Lora, read: ReadRows) -> tuple[Tensor, Tensor]:
    return read(f"{each.name}.lora_a", 0, lora.rank), read(f"{each.name}.lora_b", 0, each.n_rows)


def _target_modules(maps: list[AdapterMap]) -> set[str]:
    """Ends of the names of layers with adapters that no layer without one has."""
    others = {each.module.rpartition(".")[2] for each in maps if not each.is_trained}
    names = set()
    for each in maps:
        path, _, last = each.module.rpartition(".")
        if each.is_trained:
            names.add(last if last not in others else f"{path.rpartition('.')[2]}.{last}")
    return names
